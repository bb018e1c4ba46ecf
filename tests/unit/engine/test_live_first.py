"""Batch work takes what is free, and gives way within a step."""

from __future__ import annotations

from itertools import accumulate, count
from random import Random
from statistics import quantiles
from typing import Any

import pytest

from tests.unit.engine.scheduling import add, advance, make_scheduler, plan, shown
from tests.unit.engine.support import make_job
from workers.engine.batch_pace import LEAST_TOKENS, LENGTHENING, LIVE_SECONDS, NEGLIGIBLE_SECONDS, BatchPace
from workers.engine.block_pool import BlockPool
from workers.engine.plan import StepPlan
from workers.engine.scheduler import AGEING_SECONDS, Scheduler
from workers.engine.sequence import Sequence


def names(step: StepPlan) -> list[str]:
    return [row.sequence.job.id for row in step.rows]


def full_of_batch(size: int = 8) -> Scheduler:
    """Every slot held by a batch sequence that decodes."""
    scheduler = make_scheduler(blocks=1000, batch=size, prefill=100)
    for arrival in range(size):
        add(scheduler, f"batch {arrival}", 3, arrival=arrival, job_class="batch", max_new_tokens=100)
    advance(plan(scheduler))
    assert len(plan(scheduler).rows) == size
    return scheduler


def test_a_request_that_finds_every_slot_held_has_its_whole_next_step() -> None:
    scheduler = full_of_batch()
    add(scheduler, "live", 150, arrival=9)
    first = plan(scheduler)
    assert shown(first) == [("live", 0, 100, 0)]
    advance(first)
    second = plan(scheduler)
    assert shown(second) == [("live", 100, 50, 1)]
    advance(second)
    # Its first token is there: from now on they share the steps again.
    assert names(plan(scheduler)) == ["live", *(f"batch {number}" for number in range(7))]


def test_as_many_as_there_are_slots_start_at_once() -> None:
    scheduler = full_of_batch()
    for arrival in range(10, 18):
        add(scheduler, f"live {arrival}", 2, arrival=arrival)
    assert names(plan(scheduler)) == [f"live {number}" for number in range(10, 18)]
    assert scheduler.preemptions == 8


def test_a_prompt_of_one_token_counts_as_one() -> None:
    scheduler = full_of_batch()
    add(scheduler, "live", 1, arrival=9)
    step = plan(scheduler)
    assert shown(step) == [("live", 0, 1, 1)]
    advance(step)
    assert len(plan(scheduler).rows) == 8


def test_batch_prefills_begin_when_live_ones_are_through() -> None:
    scheduler = make_scheduler(prefill=10)
    add(scheduler, "batch", 30, job_class="batch")
    step = plan(scheduler)
    assert shown(step) == [("batch", 0, 10, 0)]
    advance(step)
    add(scheduler, "live", 16, arrival=1)
    for expected in ([("live", 0, 10, 0)], [("live", 10, 6, 1)], [("live", 16, 1, 1), ("batch", 10, 10, 0)]):
        step = plan(scheduler)
        assert shown(step) == expected
        advance(step)


def test_preempted_ones_go_on_with_the_tokens_they_had() -> None:
    scheduler = full_of_batch(2)
    victim = scheduler.running[-1]
    ids = list(victim.ids)
    add(scheduler, "live", 3, arrival=9, max_new_tokens=1)
    advance(plan(scheduler))
    assert victim in scheduler.waiting
    scheduler.remove(scheduler.running[0])
    step = plan(scheduler)
    row = next(row for row in step.rows if row.sequence is victim)
    assert list(victim.ids) == ids
    assert (row.start, row.count, row.logits) == (0, len(ids), 1)


# -- pace


@pytest.fixture
def paced() -> Scheduler:
    """6 tokens have turned out to lengthen a step by as much as they may, and a live request decodes."""
    scheduler = full_of_batch()
    for tokens in (1, 9):
        scheduler.pace.took(tokens, 0.1001 + LENGTHENING / 60 * tokens)
    add(scheduler, "live", 3, arrival=9, max_new_tokens=100)
    advance(plan(scheduler))
    return scheduler


def test_while_live_requests_are_here_steps_stay_short(paced: Scheduler) -> None:
    step = plan(paced)
    assert names(step) == ["live", *(f"batch {number}" for number in range(6))]
    assert step.left_out == 1


def test_a_little_later_batch_work_has_all_of_it(paced: Scheduler) -> None:
    paced.remove(paced.running[0])
    assert len(paced.plan(LIVE_SECONDS - 0.1, lambda sequence: 0.0).rows) == 6
    assert len(paced.plan(LIVE_SECONDS, lambda sequence: 0.0).rows) == 8


def test_pace_holds_for_prompts(paced: Scheduler) -> None:
    for sequence in paced.running[1:]:
        paced.remove(sequence)
    for sequence in list(paced.waiting):
        paced.remove(sequence)
    add(paced, "long", 50, arrival=20, job_class="batch")
    add(paced, "next", 50, arrival=21, job_class="batch")
    assert shown(plan(paced))[1:] == [("long", 0, 6, 0)]


def found(*, fixed: float, per_token: float, noise: float = 0.0) -> int:
    """Tokens of batch work on a device whose steps take `fixed + per_token * tokens` seconds, most of 500."""
    pace, draw = BatchPace(500), Random(1)
    pace.live(0.0)
    for _ in range(300):
        tokens = draw.randint(1, 100)
        pace.took(tokens, (fixed + per_token * tokens) * draw.uniform(1 - noise, 1 + noise))
    return pace.tokens(0.0)


def test_batch_work_lengthens_a_step_by_a_share_of_its_fixed_time() -> None:
    assert found(fixed=0.100, per_token=0.001) == pytest.approx(LENGTHENING * 100, abs=1)
    assert found(fixed=0.100, per_token=0.0001) == pytest.approx(LENGTHENING * 1000, abs=1)


def test_pace_hears_through_noise() -> None:
    assert 0.6 <= found(fixed=0.100, per_token=0.001, noise=0.2) / (LENGTHENING * 100) <= 1.6


def test_pace_leaves_short_steps_alone() -> None:
    assert found(fixed=0.001, per_token=NEGLIGIBLE_SECONDS / 200) == pytest.approx(200, abs=1)


def test_pace_has_bounds() -> None:
    assert found(fixed=0.050, per_token=1.0) == LEAST_TOKENS
    assert found(fixed=0.050, per_token=0.00001) == 500
    assert found(fixed=0.050, per_token=0.0) == 500
    assert found(fixed=0.0, per_token=0.0) == 500


def test_steps_that_are_all_alike_tell_nothing() -> None:
    pace = BatchPace(500)
    pace.live(0.0)
    for _ in range(100):
        pace.took(64, 0.2)
    assert pace.tokens(0.0) == 500


def test_one_step_that_stood_still_changes_little() -> None:
    pace = BatchPace(500)
    pace.live(0.0)
    for number in range(100):
        pace.took(1 + number % 50, 0.050 + 0.001 * (number % 50))
    before = pace.tokens(0.0)
    pace.took(25, 30.0)
    assert abs(pace.tokens(0.0) - before) <= 5


# -- nothing waits for ever


def test_under_steady_live_prefills_batch_sequences_age_one_by_one() -> None:
    scheduler = make_scheduler(blocks=1000, batch=6, prefill=4)
    old = [add(scheduler, f"batch {number}", 3, arrival=number, job_class="batch") for number in range(3)]
    arrivals = count(10)
    now = 0.0
    finished: list[Sequence] = []
    while len(finished) < 3 and now < 10 * AGEING_SECONDS:
        # A prompt as long as a step may be, in every step.
        live = Sequence(make_job([1] * 4, name=f"live {now}"), next(arrivals))
        scheduler.add(live)
        step = scheduler.plan(now, lambda sequence: 0.0)
        aged = [sequence for sequence in old if sequence.rank == 0 and sequence not in finished]
        assert len(aged) <= 1
        for row in step.rows:
            scheduler.advance(row)
            if row.sequence.remaining == 0:
                row.sequence.ids.append(9)
                if row.sequence in old:
                    finished.append(row.sequence)
                scheduler.remove(row.sequence)
        now += 1.0
    assert finished == old


# -- what a live request feels of it


def first_tokens(
    *, fixed: float, per_token: float, rate: float, prefill: int, prompt: int, beside: bool
) -> list[float]:
    """Seconds to the first token of 150 live requests that come at random, on a device whose steps take
    `fixed + per_token * tokens` seconds; `beside` a batch that always has more.
    """
    draw, slots = Random(1), 64
    scheduler = Scheduler(BlockPool(8000, 16, contiguous=False), max_batch_size=slots, max_prefill_tokens=prefill)
    arrivals = list(accumulate(draw.expovariate(rate) for _ in range(150)))
    born: dict[Sequence, float] = {}
    seconds: list[float] = []
    now, number = 0.0, count()

    def put(length: int, answer: int, job_class: str) -> Sequence:
        job = make_job([1] * length, name=str(next(number)), max_new_tokens=answer, job_class=job_class)
        sequence = Sequence(job, next(number))
        scheduler.add(sequence)
        return sequence

    while len(seconds) < 150:
        while len(born) < 150 and arrivals[len(born)] <= now:
            at = arrivals[len(born)]
            born[put(prompt, 30, "interactive")] = at
        while beside and sum(sequence.rank for sequence in (*scheduler.running, *scheduler.waiting)) < slots - 2:
            put(2 * prompt, draw.randint(30, 90), "batch")
        step = plan_at(scheduler, now)
        if not step.rows:
            now = arrivals[len(born)]
            continue
        took = fixed + per_token * step.tokens
        now += took
        for row in step.rows:
            scheduler.advance(row)
            sequence = row.sequence
            if row.logits and sequence.remaining == 0:
                sequence.ids.append(9)
                if sequence in born and sequence.generated == 1:
                    seconds.append(now - born[sequence])
                if sequence.generated >= sequence.job.parameters.max_new_tokens:
                    scheduler.remove(sequence)
        scheduler.pace.took(step.tokens, took)
    return seconds


def plan_at(scheduler: Scheduler, now: float) -> StepPlan:
    return scheduler.plan(now, lambda sequence: 0.0)


@pytest.mark.parametrize(
    "device",
    [
        {"fixed": 0.020, "per_token": 0.00003, "rate": 4.0, "prefill": 4096, "prompt": 200},
        {"fixed": 0.055, "per_token": 0.002, "rate": 0.5, "prefill": 128, "prompt": 60},
    ],
    ids=["as a GPU", "as a CPU"],
)
def test_first_tokens_come_nearly_as_soon_beside_a_batch(device: dict[str, Any]) -> None:
    alone, beside = (
        quantiles(first_tokens(**device, beside=beside), n=100, method="inclusive")[94] for beside in (False, True)
    )
    assert beside <= 1.2 * alone
