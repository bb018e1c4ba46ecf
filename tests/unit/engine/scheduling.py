"""A scheduler, and what its steps hold."""

from __future__ import annotations

from typing import Any

from tests.unit.engine.support import make_job
from workers.engine.block_pool import BlockPool
from workers.engine.plan import StepPlan
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence


def make_scheduler(
    blocks: int = 100, block_size: int = 4, batch: int = 4, prefill: int = 10, *, contiguous: bool = True
) -> Scheduler:
    pool = BlockPool(blocks, block_size, contiguous=contiguous)
    return Scheduler(pool, max_batch_size=batch, max_prefill_tokens=prefill)


def add(scheduler: Scheduler, name: str, prompt: int, *, arrival: int = 0, **job: Any) -> Sequence:
    sequence = Sequence(make_job(list(range(1, prompt + 1)), name=name, **job), arrival)
    scheduler.add(sequence)
    return sequence


def plan(scheduler: Scheduler, held: dict[str, float] | None = None) -> StepPlan:
    return scheduler.plan(0.0, lambda sequence: (held or {}).get(sequence.job.id, 0.0))


def advance(step: StepPlan) -> None:
    """What the engine does with a computed step."""
    for row in step.rows:
        row.sequence.computed = row.start + row.count
        if row.sequence.remaining == 0:
            row.sequence.ids.append(9)


def shown(step: StepPlan) -> list[tuple[str, int, int, int]]:
    return [(row.sequence.job.id, row.start, row.count, row.logits) for row in step.rows]


def grow(scheduler: Scheduler, steps: int) -> list[list[str]]:
    """Names of the sequences in each step; ones that are done leave."""
    names = []
    for _ in range(steps):
        step = plan(scheduler)
        for row in step.rows:
            scheduler.advance(row)
            if row.sequence.remaining == 0:
                row.sequence.ids.append(9)
                if row.sequence.generated >= row.sequence.job.parameters.max_new_tokens:
                    scheduler.remove(row.sequence)
        names.append([row.sequence.job.id for row in step.rows])
    return names
