"""Speculation without a second model: what followed the same words before is proposed to follow them again.

A step then computes the newest token and the proposed ones together, which costs little more than one token where
reading the weights is what takes the time. A proposed token counts only when the sampler, given the same logits and the
same noise, chooses it too: the answer is the same with and without, greedy or sampled.
"""

from __future__ import annotations

from array import array
from weakref import WeakKeyDictionary

from workers.engine.plan import Row, StepPlan
from workers.engine.sequence import Sequence

MOST_ROWS = 8
"""In larger steps the product of matrices takes the time, and what is proposed in vain costs as much as a token."""
_LENGTHS = (3, 2)
"""Tokens at the end of the text that must have stood there before, best first."""


class Drafter:
    """Proposes up to `count` tokens for each decoding row of a small step."""

    def __init__(self, count: int, block_size: int) -> None:
        """
        Args:
            count: tokens proposed per sequence and step at most; 0 for none.
            block_size: of the key/value cache.
        """
        self._count = count
        self._block_size = block_size
        self._indexes: WeakKeyDictionary[Sequence, NGrams] = WeakKeyDictionary()

    def draft(self, plan: StepPlan) -> StepPlan:
        """The plan with proposals, which never need a block that the sequence does not hold."""
        if not self._count or len(plan.rows) > MOST_ROWS:
            return plan
        return StepPlan([self._row(row) for row in plan.rows], plan.copies)

    def _row(self, row: Row) -> Row:
        sequence = row.sequence
        if not (row.count == row.logits == sequence.remaining == 1):
            return row
        left = sequence.job.parameters.max_new_tokens - sequence.generated
        room = len(sequence.blocks) * self._block_size - row.start
        count = min(self._count, left - 1, room - 1)
        if count < 1:
            return row
        index = self._indexes.get(sequence)
        if index is None:
            index = self._indexes[sequence] = NGrams()
        draft = index.following(sequence.ids, count)
        return Row(sequence, row.start, 1 + len(draft), 1 + len(draft), draft)


class NGrams:
    """Where each run of a few tokens last stood in a text that grows at its end."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], int] = {}
        self._seen = 0

    def following(self, ids: array[int], count: int) -> tuple[int, ...]:
        """Up to `count` tokens that followed the end of `ids` the last time it stood somewhere before."""
        # The run at the very end is left out: it would find itself.
        for stop in range(max(self._seen, min(_LENGTHS)), len(ids)):
            for length in _LENGTHS:
                if stop >= length:
                    self._places[tuple(ids[stop - length : stop])] = stop
        self._seen = len(ids)
        for length in _LENGTHS:
            place = self._places.get(tuple(ids[-length:]))
            if place is not None:
                return tuple(ids[place : place + count])
        return ()
