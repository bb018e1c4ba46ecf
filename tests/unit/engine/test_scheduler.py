"""Order, budget, room: what each step holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.engine.scheduling import add, advance, grow, make_scheduler, plan, shown
from workers.engine.scheduler import AGEING_SECONDS
from workers.engine.sequence import Sequence


def test_decode_first_then_running_prefills_then_admissions() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", 3)
    advance(plan(scheduler))
    add(scheduler, "b", 25)
    step = plan(scheduler)
    assert shown(step) == [("a", 3, 1, 1), ("b", 0, 10, 0)]
    advance(step)
    add(scheduler, "c", 8)
    step = plan(scheduler)
    assert shown(step) == [("a", 4, 1, 1), ("b", 10, 10, 0)]
    advance(step)
    step = plan(scheduler)
    assert shown(step) == [("a", 5, 1, 1), ("b", 20, 5, 1), ("c", 0, 5, 0)]
    advance(step)
    assert shown(plan(scheduler)) == [("a", 6, 1, 1), ("b", 25, 1, 1), ("c", 5, 3, 1)]


def test_interactive_before_batch_then_by_arrival() -> None:
    scheduler = make_scheduler(batch=3, prefill=100)
    add(scheduler, "old batch", 2, arrival=1, job_class="batch")
    add(scheduler, "young", 2, arrival=4)
    add(scheduler, "old", 2, arrival=2)
    add(scheduler, "young batch", 2, arrival=3, job_class="batch")
    step = plan(scheduler)
    assert [name for name, *_ in shown(step)] == ["old", "young"]
    advance(step)
    assert [name for name, *_ in shown(plan(scheduler))] == ["old", "young", "old batch"]


def test_batch_size_is_a_limit() -> None:
    scheduler = make_scheduler(batch=2, prefill=100)
    first, *_ = (add(scheduler, name, 2, arrival=i) for i, name in enumerate("abc"))
    advance(plan(scheduler))
    assert len(scheduler.running) == 2
    scheduler.remove(first)
    assert [name for name, *_ in shown(plan(scheduler))] == ["b", "c"]


def test_room_for_the_whole_sequence_is_reserved() -> None:
    scheduler = make_scheduler(blocks=12, block_size=4, prefill=100)
    a = add(scheduler, "a", 5, max_new_tokens=20)
    b = add(scheduler, "b", 4, arrival=1, max_new_tokens=12)
    c = add(scheduler, "c", 1, arrival=2, max_new_tokens=1)
    plan(scheduler)
    assert (len(a.blocks), len(b.blocks), len(c.blocks)) == (7, 4, 0)
    assert not scheduler.can_admit()
    scheduler.remove(a)
    assert scheduler.can_admit()


def test_one_that_does_not_fit_is_not_overtaken() -> None:
    scheduler = make_scheduler(blocks=11, block_size=4, prefill=100)
    a = add(scheduler, "a", 4, max_new_tokens=20)
    add(scheduler, "large", 20, arrival=1, max_new_tokens=20)
    add(scheduler, "small", 1, arrival=2, max_new_tokens=1)
    assert [name for name, *_ in shown(plan(scheduler))] == ["a"]
    scheduler.remove(a)
    assert [name for name, *_ in shown(plan(scheduler))] == ["large"]


def test_a_resumed_sequence_is_a_longer_prefill() -> None:
    scheduler = make_scheduler(prefill=100)
    add(scheduler, "a", 5, generated_ids=[7, 7, 7])
    step = plan(scheduler)
    assert shown(step) == [("a", 0, 8, 1)]
    advance(step)
    assert shown(plan(scheduler)) == [("a", 8, 1, 1)]


def test_prompt_logprobs_want_logits_of_the_whole_prompt_in_bounded_chunks() -> None:
    scheduler = make_scheduler(blocks=1000, prefill=1000)
    add(scheduler, "a", 300, prefill_logprobs=True)
    step = plan(scheduler)
    assert shown(step) == [("a", 0, 256, 256)]
    advance(step)
    step = plan(scheduler)
    assert shown(step) == [("a", 256, 44, 44)]
    advance(step)
    assert shown(plan(scheduler)) == [("a", 300, 1, 1)]


def test_what_is_not_due_is_left_out_and_holds_up_nobody() -> None:
    scheduler = make_scheduler(prefill=100)
    add(scheduler, "a", 3)
    add(scheduler, "b", 3, arrival=1)
    assert [name for name, *_ in shown(plan(scheduler, {"a": 5.0}))] == ["b"]
    assert [s.job.id for s in scheduler.running] == ["a", "b"]
    assert [name for name, *_ in shown(plan(scheduler))] == ["a", "b"]


def test_expired_are_those_that_wait_past_their_deadline() -> None:
    scheduler = make_scheduler(batch=1)
    running = add(scheduler, "a", 2, deadline=10.0)
    late = add(scheduler, "b", 2, arrival=1, deadline=10.0)
    add(scheduler, "c", 2, arrival=2, deadline=11.0)
    add(scheduler, "d", 2, arrival=3)
    plan(scheduler)
    assert scheduler.expired(9.9) == []
    assert scheduler.expired(10.0) == [late]
    assert running in scheduler.running


actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 40), st.integers(1, 12)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
        st.tuples(st.just("remove"), st.integers(0, 100), st.just(0)),
    ),
    max_size=80,
)


@pytest.mark.parametrize("contiguous", [True, False])
@given(actions=actions)
def test_invariants(contiguous: bool, actions: list[tuple[str, int, int]]) -> None:
    scheduler = make_scheduler(blocks=30, block_size=4, batch=4, prefill=16, contiguous=contiguous)
    alive: list[Sequence] = []
    for number, (action, x, y) in enumerate(actions):
        if action == "add":
            alive.append(add(scheduler, str(number), x, arrival=number, max_new_tokens=y))
        elif action == "remove" and alive:
            scheduler.remove(alive.pop(x % len(alive)))
        elif action == "step":
            could = scheduler.can_admit()
            step = plan(scheduler)
            assert step.rows or not (could or scheduler.running)
            prefill = [row.count for row in step.rows if row.sequence.remaining > 1]
            assert sum(prefill) <= 16
            assert len({row.sequence for row in step.rows}) == len(step.rows) <= 4
            advance(step)
            for sequence in list(alive):
                if sequence.generated >= sequence.job.parameters.max_new_tokens:
                    scheduler.remove(sequence)
                    alive.remove(sequence)
        held = [block for sequence in scheduler.running for block in sequence.blocks]
        assert len(held) == len(set(held)) == scheduler.pool.capacity - scheduler.pool.free_blocks
        assert all(s.computed <= len(s.blocks) * 4 for s in scheduler.running)
        assert {*scheduler.running, *scheduler.waiting} == set(alive)
    for sequence in alive:
        scheduler.remove(sequence)
    assert scheduler.pool.free_blocks == scheduler.pool.capacity


# -- room


def test_scattered_blocks_are_taken_one_by_one() -> None:
    scheduler = make_scheduler(blocks=20, prefill=100, contiguous=False)
    a = add(scheduler, "a", 7, max_new_tokens=30)
    grow(scheduler, 1)
    assert (len(a.ids), len(a.blocks)) == (8, 2)
    grow(scheduler, 1)
    assert (len(a.ids), len(a.blocks)) == (9, 2)
    grow(scheduler, 1)
    assert (len(a.ids), len(a.blocks)) == (10, 3)


def test_an_admission_leaves_each_running_one_a_block() -> None:
    scheduler = make_scheduler(blocks=7, prefill=100, contiguous=False)
    add(scheduler, "a", 12, max_new_tokens=12)
    assert grow(scheduler, 1) == [["a"]]
    add(scheduler, "b", 12, arrival=1, max_new_tokens=1)
    assert not scheduler.can_admit()
    add(scheduler, "c", 4, arrival=-1, max_new_tokens=1)
    assert scheduler.can_admit()
    assert grow(scheduler, 1) == [["a", "c"]]


def test_when_blocks_run_out_the_last_one_gives_its_own() -> None:
    scheduler = make_scheduler(blocks=9, prefill=100, contiguous=False)
    for arrival, name in enumerate("abc"):
        add(scheduler, name, 4, arrival=arrival, max_new_tokens=16)
    names = grow(scheduler, 60)
    # Each step that preempts is without the victim, and with all before it.
    assert all(step == ["a", "b", "c"][: len(step)] or "a" not in step for step in names)
    assert scheduler.preemptions >= 2
    assert not scheduler.running
    assert not scheduler.waiting
    assert scheduler.pool.free_blocks == 8


def test_a_step_that_preempted_admits_nothing() -> None:
    scheduler = make_scheduler(blocks=5, prefill=100, contiguous=False)
    a = add(scheduler, "a", 4, max_new_tokens=12)
    b = add(scheduler, "b", 8, arrival=1, max_new_tokens=5)
    assert grow(scheduler, 1) == [["a", "b"]]
    add(scheduler, "c", 1, arrival=2, max_new_tokens=1)
    a.ids.extend([9] * 4)
    assert grow(scheduler, 1) == [["a"]]
    assert b.blocks == []
    assert [s.job.id for s in scheduler.waiting] == ["b", "c"]


@pytest.mark.parametrize("contiguous", [True, False])
def test_interactive_takes_the_place_of_batch_at_once(contiguous: bool) -> None:
    scheduler = make_scheduler(batch=3, prefill=100, contiguous=contiguous)
    for arrival in range(3):
        add(scheduler, f"batch {arrival}", 3, arrival=arrival, job_class="batch")
    grow(scheduler, 1)
    add(scheduler, "urgent", 3, arrival=9)
    assert scheduler.can_admit()
    # The last one yields in the same step, and its place in the queue is kept.
    assert grow(scheduler, 2) == [["urgent"], ["urgent", "batch 0", "batch 1"]]
    assert [(s.job.id, s.computed) for s in scheduler.waiting] == [("batch 2", 0)]
    add(scheduler, "batch 3", 3, arrival=3, job_class="batch")
    assert [s.job.id for s in scheduler.waiting] == ["batch 2", "batch 3"]


@pytest.mark.parametrize("contiguous", [True, False])
def test_batch_yields_its_memory(contiguous: bool) -> None:
    scheduler = make_scheduler(blocks=13, prefill=100, contiguous=contiguous)
    for arrival in range(3):
        add(scheduler, f"batch {arrival}", 12, arrival=arrival, job_class="batch", max_new_tokens=4)
    grow(scheduler, 1)
    add(scheduler, "urgent", 24, arrival=9, max_new_tokens=4)
    (step,) = grow(scheduler, 1)
    assert step[0] == "urgent"
    assert scheduler.preemptions == 2
    assert grow(scheduler, 20)[-1] == []
    assert scheduler.pool.free_blocks == 12


def test_nobody_yields_for_what_would_not_fit_anyway() -> None:
    scheduler = make_scheduler(blocks=13, prefill=100)
    add(scheduler, "a", 12, max_new_tokens=12)
    grow(scheduler, 1)
    add(scheduler, "batch", 8, arrival=1, job_class="batch", max_new_tokens=8)
    grow(scheduler, 1)
    add(scheduler, "large", 24, arrival=2, max_new_tokens=8)
    assert not scheduler.can_admit()
    assert grow(scheduler, 1) == [["a", "batch"]]
    assert scheduler.preemptions == 0


def test_interactive_does_not_yield_to_interactive() -> None:
    scheduler = make_scheduler(batch=1, prefill=100)
    add(scheduler, "a", 3, arrival=5)
    grow(scheduler, 1)
    add(scheduler, "older", 3, arrival=1)
    assert grow(scheduler, 1) == [["a"]]


def test_batch_that_waited_long_counts_as_interactive() -> None:
    scheduler = make_scheduler(batch=1, prefill=100)
    old = add(scheduler, "old batch", 3, arrival=1, job_class="batch")
    add(scheduler, "a", 3, arrival=2)

    def first_of(now: float) -> str:
        return scheduler.plan(now, lambda sequence: 0.0).rows[0].sequence.job.id

    assert first_of(0.0) == "a"
    assert first_of(AGEING_SECONDS - 1) == "a"
    add(scheduler, "b", 3, arrival=3)
    assert scheduler.waiting[0].job.id == "b"
    assert first_of(AGEING_SECONDS) == "a"
    assert scheduler.waiting[0] is old
    scheduler.remove(scheduler.running[0])
    assert first_of(AGEING_SECONDS) == "old batch"
    # And it keeps its place.
    assert first_of(AGEING_SECONDS + 1) == "old batch"
