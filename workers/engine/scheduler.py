"""Which tokens of which sequences the next step computes: continuous batching with chunked prefill."""

from __future__ import annotations

import sys
from bisect import insort
from collections.abc import Callable, Iterable

from workers.engine.batch_pace import BatchPace
from workers.engine.block_pool import BlockPool
from workers.engine.plan import Copy, Row, StepPlan
from workers.engine.sequence import Sequence

AGEING_SECONDS = 60.0
"""A `batch` sequence that nothing was computed for in this time, all in all, counts as interactive from then on; one of
them at a time."""
_PROMPT_LOGPROBS_CHUNK = 256
"""Prompt tokens per step of a sequence that wants their log probabilities: each one is a row of logits."""

Due = Callable[[Sequence], float]


class Scheduler:
    """Running and waiting sequences, in lists ordered by class (`interactive` before `batch`), arrival and child.

    A step is made up class by class: every running sequence that needs one token (decode), then chunks of running
    prefills, then sequences admitted from the waiting list; the chunks share a budget of prompt tokens, so that a long
    prompt cannot hold up the others' next token for long. The first one waiting that does not fit keeps those behind it
    waiting, or else a large one would wait for ever.

    Memory. Over scattered blocks a sequence is admitted when there is room for its ids and one more block for each
    running one, and grows block by block. Over contiguous extents it is admitted when there is room for its prompt and
    its longest answer in one piece (memory that was never touched costs nothing there), and never needs to grow.

    Preemption. When a sequence cannot grow, the last one running (class, then arrival) gives its blocks back and waits in
    its old place; what it computed is found in the prefix cache or computed again, with the same result. An interactive
    sequence that waits takes the place of `batch` ones, the last first. Victims are never in the step already; a step that
    preempted for growth admits nothing, one that preempted at all no `batch`. The first of all always goes on, so
    everything comes to an end; and a `batch` sequence that has waited for `AGEING_SECONDS` is an interactive one.

    Live traffic first. A step that computes prompt tokens of an interactive sequence, or its first token, has no `batch`
    rows; and while interactive sequences come, no step has more of them than keeps it short (`pace`): whoever arrives
    waits for the step under way.

    Prefix. A sequence begins with the keys and values of the longest beginning of its ids that some block still holds (at
    least one token is left to compute), or with those of a running sequence with the same prompt (`Sequence.parent`).
    Scattered blocks are shared, except the last one when it is not full, which is copied; extents are copied into.
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
        self.pace = BatchPace(max_prefill_tokens + max_batch_size)
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.prefix_asked_tokens = 0
        self.prefix_hit_tokens = 0
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for admission."""
        insort(self.waiting, sequence, key=_place)

    def fork(self, parent: Sequence, children: Iterable[Sequence]) -> None:
        """Let sequences wait that have the prompt of `parent`, which has computed it."""
        for child in children:
            child.parent = parent
            child.admitted_at = parent.admitted_at
            self.add(child)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its blocks; one that was never added is passed over."""
        if sequence.blocks:
            self.running.remove(sequence)
            self.pool.free(sequence.blocks)
            sequence.blocks = []
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def advance(self, row: Row) -> None:
        """A row was computed: the blocks it filled can serve others from now on."""
        row.sequence.computed = row.start + row.count
        self._publish(row.sequence)

    def _publish(self, sequence: Sequence) -> None:
        if sequence.root is None:
            return
        full = sequence.computed // self.pool.block_size
        if full > sequence.published:
            digests = sequence.digests(full, self.pool.block_size)
            for index in range(sequence.published, full):
                self.pool.publish(sequence.blocks[index], digests[index])
            sequence.published = full

    def expired(self, now: float) -> list[Sequence]:
        """Sequences that never ran and whose deadline (Unix seconds) has passed."""
        return [
            s for s in self.waiting if s.admitted_at is None and s.job.deadline is not None and s.job.deadline <= now
        ]

    def can_fit(self, sequence: Sequence) -> bool:
        """Whether the sequence fits an empty cache."""
        return self.pool.blocks_for(sequence.reserved_tokens) <= self.pool.capacity

    def can_admit(self) -> bool:
        """Whether the first one waiting could run now."""
        if not self.waiting:
            return False
        return self._fits(self.waiting[0]) or self._would_fit(self.waiting[0])

    def plan(self, now: float, due: Due) -> StepPlan:
        """Decide the next step: grow, preempt and admit as described above.

        Args:
            now: monotonic time.
            due: monotonic time before which a sequence must not be scheduled.
        """
        self._age(now)
        draft = _Draft(self.max_prefill_tokens, now)
        if any(sequences and sequences[0].rank == 0 for sequences in (self.running, self.waiting)):
            self.pace.live(now)
        self._fill(draft, 0, due)
        if any(row.count > 1 or not row.sequence.generated for row in draft.rows):
            for sequence in self.running:
                if sequence.rank:
                    sequence.wait(now)
        else:
            draft.room = self.pace.tokens(now)
            self._fill(draft, 1, due)
        copies = [Copy(source, target) for target, source in draft.source_of.items()]
        return StepPlan(draft.rows, copies, draft.left_out)

    def _fill(self, draft: _Draft, rank: int, due: Due) -> None:
        self._continue(draft, rank, due)
        self._admit_waiting(draft, rank, due)

    def _age(self, now: float) -> None:
        for sequence in self.waiting:
            sequence.wait(now)
        everyone = (*self.running, *self.waiting)
        aged = next((s for s in everyone if s.rank and s.waited(now) >= AGEING_SECONDS), None)
        # Where one waits too long, many do: all at once they would be in the way of live requests.
        if aged is not None and all(s.rank or s.job.job_class == "interactive" for s in everyone):
            aged.rank = 0
            self.running.sort(key=_place)
            self.waiting.sort(key=_place)

    def _continue(self, draft: _Draft, rank: int, due: Due) -> None:
        """Running sequences: one token each, then chunks."""
        ready = [s for s in self.running if s.rank == rank and due(s) <= draft.now]
        scheduled = ready[: draft.room]
        draft.left_out = len(ready) - len(scheduled)
        # In their order, so that a victim, the last one running, is never one that has its row.
        size = self.pool.block_size
        kept = [s for s in scheduled if len(s.ids) <= len(s.blocks) * size or self._grow(s, draft)]
        decoding = [s for s in kept if s.remaining == 1]
        draft.room -= len(decoding)
        draft.rows.extend(Row(s, s.computed, 1, 1) for s in decoding)
        if rank:
            for sequence in decoding:
                sequence.go_on(draft.now)
        for sequence in kept:
            if sequence.remaining > 1:
                draft.add_chunk(sequence)

    def _grow(self, sequence: Sequence, draft: _Draft) -> bool:
        """Hold blocks for all its ids; False when it was preempted."""
        while sequence.blocks:
            missing = self.pool.blocks_for(len(sequence.ids)) - len(sequence.blocks)
            if missing <= 0:
                return True
            more = self.pool.allocate(missing)
            if more is not None:
                sequence.blocks.extend(more)
                return True
            self._preempt(self.running[-1], draft)
        return False

    def _admit_waiting(self, draft: _Draft, rank: int, due: Due) -> None:
        if draft.preempted:
            return
        while draft.budget > 0 and draft.room > 0 and self.waiting and self.waiting[0].rank == rank:
            sequence = self.waiting[0]
            if not self._fits(sequence):
                if not self._would_fit(sequence):
                    return
                while not self._fits(sequence):
                    self._preempt(self.running[-1], draft)
            self._admit(sequence, draft)
            if due(sequence) <= draft.now:
                draft.add_chunk(sequence)

    def _preempt(self, sequence: Sequence, draft: _Draft) -> None:
        draft.preempted = True
        self.preemptions += 1
        self.running.remove(sequence)
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        sequence.computed = sequence.published = 0
        sequence.wait(draft.now)
        self.add(sequence)

    # -- room

    def _fits(self, sequence: Sequence) -> bool:
        if len(self.running) >= self.max_batch_size:
            return False
        if self.pool.contiguous:
            return self.pool.fits(self.pool.blocks_for(sequence.reserved_tokens))
        sources, tokens = self._beginning(sequence)
        shared = sources[: tokens // self.pool.block_size]
        # Shared blocks that are free now are not free afterwards; those that others hold cost nothing.
        taken = sum(map(self.pool.is_free, shared)) + self.pool.blocks_for(len(sequence.ids)) - len(shared)
        return self.pool.fits(taken + self._headroom())

    def _would_fit(self, sequence: Sequence) -> bool:
        """Whether it fits in place of running `batch` sequences (possible savings by sharing left aside)."""
        victims = [s for s in self.running if s.rank]
        if sequence.rank or not victims or len(self.running) - len(victims) >= self.max_batch_size:
            return False
        freed = [block for victim in victims for block in victim.blocks]
        if self.pool.contiguous:
            return self.pool.fits(self.pool.blocks_for(sequence.reserved_tokens), freed)
        return self.pool.fits(self.pool.blocks_for(len(sequence.ids)) + self._headroom(), freed)

    def _headroom(self) -> int:
        """Blocks left free at an admission: one for each running sequence that may come to need one."""
        return sum(len(s.blocks) < self.pool.blocks_for(s.reserved_tokens) for s in self.running)

    def _beginning(self, sequence: Sequence) -> tuple[list[int], int]:
        """Blocks that hold a beginning of the sequence, and its length in tokens (the last block may not be full)."""
        size = self.pool.block_size
        found: list[int] = []
        if sequence.root is not None and not sequence.wants_prompt_logprobs:
            found = self.pool.find(sequence.digests((len(sequence.ids) - 1) // size, size))
        tokens = len(found) * size
        parent, prompt = sequence.parent, sequence.prompt_length - 1
        if parent is not None and parent.blocks and parent.computed >= prompt > tokens:
            return parent.blocks[: self.pool.blocks_for(prompt)], prompt
        return found, tokens

    def _admit(self, sequence: Sequence, draft: _Draft) -> None:
        pool = self.pool
        sources, tokens = self._beginning(sequence)
        if pool.contiguous:
            shared: list[int] = []
            own = pool.allocate(pool.blocks_for(sequence.reserved_tokens), near=sources[0] if sources else None)
        else:
            shared = sources[: tokens // pool.block_size]
            pool.share(shared)
            own = pool.allocate(pool.blocks_for(len(sequence.ids)) - len(shared))
        assert own is not None, "admitted without room"
        if sequence.root is not None and not sequence.wants_prompt_logprobs:
            self.prefix_asked_tokens += len(sequence.ids)
            self.prefix_hit_tokens += tokens
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_place)
        sequence.blocks = shared + own
        sequence.computed = tokens
        sequence.parent = None
        sequence.go_on(draft.now)
        if sequence.admitted_at is None:
            sequence.admitted_at = draft.now
        draft.copy(sources[len(shared) :], own)
        # At once: what is copied, or taken over, can serve the next one admitted in this same step.
        self._publish(sequence)


class _Draft:
    """A step in the making."""

    def __init__(self, budget: int, now: float) -> None:
        self.now = now
        self.budget = budget
        """Prompt tokens that may still be added."""
        self.room = sys.maxsize
        """Tokens of any kind that may."""
        self.left_out = 0
        """Running sequences that there was no such room for."""
        self.rows: list[Row] = []
        self.source_of: dict[int, int] = {}
        """By block that is to have a copy: the block that has the content before the step."""
        self.preempted = False

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """Let targets, of which there may be more, have what the sources have."""
        # A source may be the target of a copy for a sequence that was admitted in this same step.
        origins = [self.source_of.get(source, source) for source in sources]
        self.source_of.update((b, a) for a, b in zip(origins, targets, strict=False) if a != b)

    def add_chunk(self, sequence: Sequence) -> None:
        """Append the next chunk of a prefill, if the budget has anything left."""
        if self.budget <= 0:
            sequence.wait(self.now)
            return
        if self.room <= 0:
            return
        sequence.go_on(self.now)
        all_logits = sequence.wants_prompt_logprobs
        most = _PROMPT_LOGPROBS_CHUNK if all_logits else self.budget
        count = min(sequence.remaining, self.budget, self.room, most)
        logits = count if all_logits else int(count == sequence.remaining)
        self.rows.append(Row(sequence, sequence.computed, count, logits))
        self.budget -= count
        self.room -= count


def _place(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.rank, sequence.arrival, sequence.child
