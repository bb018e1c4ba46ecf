"""Which tokens of which sequences the next step computes: continuous batching with chunked prefill."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from workers.engine.block_pool import BlockPool
from workers.engine.plan import Row, StepPlan
from workers.engine.sequence import Sequence

_PROMPT_LOGPROBS_CHUNK = 256
"""Prompt tokens per step of a sequence that wants their log probabilities: each one is a row of logits."""


class Scheduler:
    """Running and waiting sequences, in lists: the order of a step is deterministic.

    A step holds every running sequence that needs one token (decode), then chunks of running prefills, then sequences
    admitted from the waiting list, `interactive` before `batch` and in order of arrival; the chunks share a budget of
    prompt tokens, so that a long prompt cannot hold up the others' next token for long. A sequence is admitted when there
    is room for its prompt and its longest answer; once running it is never preempted. The first one waiting that does not
    fit keeps those behind it waiting, or else a large one would wait for ever.
    """

    def __init__(self, pool: BlockPool, *, max_batch_size: int, max_prefill_tokens: int) -> None:
        """
        Args:
            pool: the blocks of the key/value cache.
            max_batch_size: sequences that run at once at most.
            max_prefill_tokens: prompt tokens per step at most.
        """
        self.pool = pool
        self.max_batch_size = max_batch_size
        self.max_prefill_tokens = max_prefill_tokens
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for admission."""
        insort(self.waiting, sequence, key=_place)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its blocks."""
        if sequence.blocks:
            self.running.remove(sequence)
            self.pool.free(sequence.blocks)
            sequence.blocks = []
        else:
            self.waiting.remove(sequence)

    def expired(self, now: float) -> list[Sequence]:
        """Waiting sequences whose deadline (Unix seconds) has passed."""
        return [s for s in self.waiting if s.job.deadline is not None and s.job.deadline <= now]

    def can_fit(self, sequence: Sequence) -> bool:
        """Whether the sequence fits an empty cache."""
        return self.pool.blocks_for(sequence.reserved_tokens) <= self.pool.capacity

    def can_admit(self) -> bool:
        """Whether the first one waiting could run now."""
        return (
            bool(self.waiting)
            and len(self.running) < self.max_batch_size
            and self.pool.fits(self.pool.blocks_for(self.waiting[0].reserved_tokens))
        )

    def plan(self, now: float, due: Callable[[Sequence], float]) -> StepPlan:
        """Decide the next step and admit what fits.

        Args:
            now: monotonic time.
            due: monotonic time before which a sequence must not be scheduled.
        """
        scheduled = [s for s in self.running if due(s) <= now]
        rows = [Row(s, s.computed, 1, 1) for s in scheduled if s.remaining == 1]
        budget = self.max_prefill_tokens
        for sequence in scheduled:
            if sequence.remaining > 1 and budget > 0:
                budget -= _add_chunk(rows, sequence, budget)
        while budget > 0 and self.can_admit():
            sequence = self._admit(now)
            if due(sequence) <= now:
                budget -= _add_chunk(rows, sequence, budget)
        return StepPlan(rows)

    def _admit(self, now: float) -> Sequence:
        sequence = self.waiting.pop(0)
        blocks = self.pool.allocate(self.pool.blocks_for(sequence.reserved_tokens))
        assert blocks is not None, "admitted without room"
        sequence.blocks = blocks
        sequence.admitted_at = now
        self.running.append(sequence)
        return sequence


def _place(sequence: Sequence) -> tuple[bool, int]:
    return sequence.job.job_class != "interactive", sequence.arrival


def _add_chunk(rows: list[Row], sequence: Sequence, budget: int) -> int:
    """Append the next chunk of a prefill and return its length."""
    all_logits = sequence.job.parameters.prefill_logprobs and sequence.computed < sequence.prompt_length
    count = min(sequence.remaining, budget, _PROMPT_LOGPROBS_CHUNK if all_logits else budget)
    logits = count if all_logits else int(count == sequence.remaining)
    rows.append(Row(sequence, sequence.computed, count, logits))
    return count
