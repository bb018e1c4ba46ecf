"""Random admission, cancelling, preemption, resuming and forking over a cache that is far too small.

Runs by itself too: `python -m tests.unit.engine.memory_fuzz 100000`.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from common.errors import GenerationFailed
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Accepted, Cancelled, Failed, Job, Tokens
from tests.unit.engine.support import Clock, HashedModel, byte_level, make_job, run, save
from workers.engine.engine import Engine
from workers.engine.messages import JobEvent
from workers.engine.plan import RequestFault, StepPlan


@dataclass
class Tale:
    """What became of one request."""

    job: Job
    """Its newest attempt."""
    ids: list[list[int]]
    """Of each child, over all attempts."""
    finished: set[int] = field(default_factory=set)
    ended: bool = False


class MemoryFuzz:
    """One engine, and the jobs it is given."""

    def __init__(self, tokenizer: Tokenizer, *, contiguous: bool, seed: int) -> None:
        self.random = random.Random(seed)
        self.tokenizer = tokenizer
        self.clock = Clock()
        self.model = HashedModel(tokenizer.vocab_size, num_blocks=33, contiguous=contiguous, max_batch_size=6)
        self.engine = Engine(
            self.model,
            tokenizer,
            Settings.of(max_batch_prefill_tokens=24),
            clock=self.clock,
            unix_time=self.clock,
        )
        self.scheduler = self.engine._scheduler
        self.tales: dict[str, Tale] = {}
        self.open: list[str] = []
        self.steps = 0
        self.added = 0
        self.counts: Counter[str] = Counter()
        self._roomy = Engine(
            HashedModel(tokenizer.vocab_size),
            tokenizer,
            Settings.of(prefix_caching=False),
            clock=self.clock,
            unix_time=self.clock,
        )
        self._alone: dict[bytes, list[list[int]]] = {}

    def run(self, steps: int) -> None:
        """Random steps, then those that bring all to an end."""
        for _ in range(steps):
            self._interfere()
            self._step()
        while self.open:
            self._step()
        assert not self.engine.has_work
        assert self.engine.next_due() is None
        pool = self.scheduler.pool
        assert pool.free_blocks == pool.capacity
        assert not [*self.scheduler.running, *self.scheduler.waiting]
        assert not self.engine._requests

    def _interfere(self) -> None:
        choose = self.random.random
        if len(self.open) < 12 and choose() < 0.35:
            self._add(self._job())
        if self.open and choose() < 0.03:
            self.counts["cancelled"] += 1
            self.engine.cancel([self.random.choice(self.open)])
        if self.open and choose() < 0.05:
            self._resume(self.random.choice(self.open))
        if choose() < 0.02:
            self._fault()
        if choose() < 0.01:
            self.clock.now += 45  # `batch` jobs age.

    def _job(self) -> Job:
        choose = self.random
        # Prompts begin in the same few ways, and some are equal.
        begin = [20 + choose.randrange(3)] * choose.choice([0, 3, 4, 8, 13])
        prompt = begin + [30 + choose.randrange(2) for _ in range(choose.randrange(1, 18))]
        self.added += 1
        return make_job(
            prompt,
            name=str(self.added),
            job_class=choose.choice(["interactive", "batch"]),
            max_new_tokens=choose.randrange(1, 24),
            children=choose.choice([1, 1, 1, 2, 3]),
            sample=choose.random() < 0.5,
            seed=choose.randrange(4),
            prefill_logprobs=choose.random() < 0.1,
            ignore_eos=True,
        )

    def _add(self, job: Job) -> None:
        tale = self.tales.get(job.id)
        if tale is None:
            self.tales[job.id] = Tale(job, [[] for _ in range(job.parameters.children)])
            self.open.append(job.id)
        else:
            tale.job = job
            tale.finished.clear()
        self.engine.add([job])

    def _resume(self, request: str) -> None:
        """Send the job again with the ids so far, while its old attempt runs or after that was cancelled."""
        self._take(self.engine.take_events())
        if request not in self.open:
            return
        self.counts["resumed"] += 1
        tale = self.tales[request]
        if self.random.random() < 0.5:
            self.engine.cancel([request])
            assert self.engine.take_events() == [JobEvent(request, tale.job.attempt, Cancelled())]
        again = msgspec.structs.replace(
            tale.job, attempt=tale.job.attempt + 1, generated_ids=list(tale.ids[0]), sibling_ids=tale.ids[1:]
        )
        self._add(again)

    def _fault(self) -> None:
        victim = self.random.randrange(6)

        def fault(plan: StepPlan) -> None:
            self.model.before_forward = lambda plan: None
            self.counts["faults"] += 1
            if victim == 0:
                raise RuntimeError("of unknown origin")
            row = plan.rows[victim % len(plan.rows)]
            raise RequestFault(row.sequence, GenerationFailed("at fault"))

        self.model.before_forward = fault

    def _step(self) -> None:
        self.steps += 1
        if self.engine.next_due() is None:
            assert not self.open
        self._take(self.engine.step())
        self._check_blocks()

    def _take(self, events: list[JobEvent]) -> None:
        for event in events:
            tale = self.tales[event.request]
            if event.attempt != tale.job.attempt:
                assert isinstance(event.body, Cancelled | Accepted | Tokens)
                continue
            assert not tale.ended, "an event after the last one"
            match event.body:
                case Tokens() as tokens:
                    self._take_tokens(tale, tokens)
                    if tokens.ends:
                        self._end(tale, whole=True)
                case Failed():
                    self.counts["failed"] += 1
                    self._end(tale, whole=False)
                case Cancelled():
                    self._end(tale, whole=False)

    def _take_tokens(self, tale: Tale, tokens: Tokens) -> None:
        ids = tale.ids[tokens.child]
        assert tokens.child not in tale.finished
        assert tokens.offset == len(ids)
        ids.extend(token.id for token in tokens.tokens)
        if tokens.finish is not None:
            tale.finished.add(tokens.child)
            assert tokens.finish.generated_tokens == len(ids) == tale.job.parameters.max_new_tokens
            assert tokens.unfinished == tale.job.parameters.children - len(tale.finished)
            # An attempt that had nothing left to compute has no details of the prompt.
            if tale.job.parameters.prefill_logprobs and tokens.child == 0 and tokens.tokens:
                assert [token.id for token in tokens.finish.prefill] == tale.job.prompt_ids

    def _end(self, tale: Tale, *, whole: bool) -> None:
        tale.ended = True
        self.open.remove(tale.job.id)
        if whole:
            self.counts["finished"] += 1
            assert len(tale.finished) == tale.job.parameters.children
        for ids, expected in zip(tale.ids, self._expected(tale.job), strict=True):
            assert ids == expected[: len(ids)]
            assert not whole or ids == expected
        del self.tales[tale.job.id].ids[:]

    def _expected(self, job: Job) -> list[list[int]]:
        """Each child's ids when it has an engine to itself, one child at a time and without any cache."""
        parameters = job.parameters
        key = msgspec.json.encode([job.prompt_ids, parameters])
        if key not in self._alone:
            self._alone[key] = [self._answer_alone(job, child) for child in range(parameters.children)]
        return self._alone[key]

    def _answer_alone(self, job: Job, child: int) -> list[int]:
        alone = msgspec.structs.replace(job, generated_ids=[], sibling_ids=[]).child(child)
        events = run(self._roomy, [alone])
        return [token.id for event in events if isinstance(event.body, Tokens) for token in event.body.tokens]

    def _check_blocks(self) -> None:
        pool, running = self.scheduler.pool, self.scheduler.running
        held = Counter(block for sequence in running for block in sequence.blocks)
        assert all(pool._holders[block] == held[block] for block in range(pool.num_blocks))
        assert pool.free_blocks == pool.capacity - len(held)
        assert all(pool.is_free(block) == (block not in held) for block in range(1, pool.num_blocks))
        assert not pool.contiguous or all(count == 1 for count in held.values())
        assert len(running) <= self.scheduler.max_batch_size
        for sequence in running:
            assert sequence.computed <= len(sequence.blocks) * pool.block_size
            # What it may write to is its own, and nothing that others could find.
            for block in sequence.blocks[sequence.computed // pool.block_size :]:
                assert not pool.shared(block)
                assert block not in pool._cache
        for sequence in self.scheduler.waiting:
            assert not sequence.blocks
        self.counts["shared"] += sum(count > 1 for count in held.values())

    def report(self) -> dict[str, Any]:
        scheduler = self.scheduler
        return {
            "steps": self.steps,
            "jobs": self.added,
            "preemptions": scheduler.preemptions,
            "prefix_hit_tokens": scheduler.prefix_hit_tokens,
            "blocks_copied": self.model.copied,
            **self.counts,
        }


def main(steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = save(byte_level(), Path(folder) / "tokenizer")
        for contiguous in (False, True):
            fuzz = MemoryFuzz(tokenizer, contiguous=contiguous, seed=1)
            fuzz.run(steps)
            print("contiguous" if contiguous else "scattered", fuzz.report())


if __name__ == "__main__":
    main(int(sys.argv[1]))
