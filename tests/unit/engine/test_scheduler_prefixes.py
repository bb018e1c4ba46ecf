"""Beginnings that are known, and children, which begin with their parent's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.engine.scheduling import grow, make_scheduler, plan, shown
from tests.unit.engine.support import make_job
from workers.engine.plan import Copy
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence


def cached(scheduler: Scheduler, name: str, ids: list[int], *, arrival: int = 0, **job: Any) -> Sequence:
    sequence = Sequence(make_job(ids, name=name, **job), arrival, root=b"root")
    scheduler.add(sequence)
    return sequence


def test_a_known_beginning_is_shared() -> None:
    scheduler = make_scheduler(prefill=100, contiguous=False)
    ids = list(range(1, 14))
    a = cached(scheduler, "a", ids)
    grow(scheduler, 1)
    b = cached(scheduler, "b", ids, arrival=1)
    step = plan(scheduler)
    assert shown(step) == [("a", 13, 1, 1), ("b", 12, 1, 1)]
    assert step.copies == []
    assert (b.blocks[:3], scheduler.pool.shared(b.blocks[0])) == (a.blocks[:3], True)
    assert b.blocks[3] != a.blocks[3]
    assert (scheduler.prefix_asked_tokens, scheduler.prefix_hit_tokens) == (26, 12)
    scheduler.remove(a)
    scheduler.remove(b)
    # All but the last token, even when all of it is there.
    cached(scheduler, "c", ids[:12], arrival=2)
    assert shown(plan(scheduler)) == [("c", 8, 4, 1)]


def test_a_known_beginning_is_copied_into_an_extent() -> None:
    scheduler = make_scheduler(blocks=40, prefill=100)
    ids = list(range(1, 14))
    a = cached(scheduler, "a", ids)
    grow(scheduler, 1)
    b = cached(scheduler, "b", ids, arrival=1)
    step = plan(scheduler)
    assert shown(step)[1] == ("b", 12, 1, 1)
    assert step.copies == [Copy(a.blocks[i], b.blocks[i]) for i in range(3)]


def test_a_free_extent_goes_on_where_it_lies() -> None:
    scheduler = make_scheduler(blocks=40, prefill=100)
    a = cached(scheduler, "a", list(range(1, 14)))
    grow(scheduler, 1)
    blocks = a.blocks
    scheduler.remove(a)
    b = cached(scheduler, "b", [*range(1, 14), 50, 51, 52, 53], arrival=1)
    step = plan(scheduler)
    assert shown(step) == [("b", 12, 5, 1)]
    assert (step.copies, b.blocks[:3]) == ([], blocks[:3])


def test_roots_and_missing_roots_share_nothing() -> None:
    scheduler = make_scheduler(prefill=100, contiguous=False)
    ids = list(range(1, 14))
    cached(scheduler, "a", ids)
    grow(scheduler, 1)
    for name, root in (("b", b"other"), ("c", None)):
        scheduler.add(Sequence(make_job(ids, name=name), 1, root=root))
    assert shown(plan(scheduler))[1:] == [("b", 0, 13, 1), ("c", 0, 13, 1)]


def test_prompt_logprobs_are_not_looked_up_but_published() -> None:
    scheduler = make_scheduler(prefill=100, contiguous=False)
    ids = list(range(1, 14))
    cached(scheduler, "a", ids, prefill_logprobs=True)
    cached(scheduler, "b", ids, arrival=1, prefill_logprobs=True)
    grow(scheduler, 1)
    assert scheduler.prefix_asked_tokens == 0
    cached(scheduler, "c", ids, arrival=2)
    assert shown(plan(scheduler))[-1] == ("c", 12, 1, 1)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("root", [None, b"root"])
def test_children_begin_with_all_but_the_last_token_of_the_prompt(contiguous: bool, root: bytes | None) -> None:
    scheduler = make_scheduler(prefill=100, contiguous=contiguous)
    job = make_job(list(range(1, 12)))
    parent, *children = (Sequence(job, 1, child=child, root=root) for child in range(3))
    scheduler.add(parent)
    scheduler.advance(plan(scheduler).rows[0])
    scheduler.fork(parent, children)
    parent.ids.append(9)
    step = plan(scheduler)
    assert [(row.sequence.child, row.start, row.count) for row in step.rows] == [(0, 11, 1), (1, 10, 1), (2, 10, 1)]
    if contiguous:
        assert [copy.source for copy in step.copies] == parent.blocks[:3] * 2
    else:
        assert all(child.blocks[:2] == parent.blocks[:2] for child in children)
        assert step.copies == [Copy(parent.blocks[2], child.blocks[2]) for child in children]
    assert {child.admitted_at for child in children} == {parent.admitted_at}


def test_a_child_of_one_that_left_computes_by_itself() -> None:
    scheduler = make_scheduler(prefill=100)
    job = make_job(list(range(1, 12)))
    parent, child = (Sequence(job, 1, child=child) for child in range(2))
    scheduler.add(parent)
    scheduler.advance(plan(scheduler).rows[0])
    scheduler.fork(parent, [child])
    scheduler.remove(parent)
    step = plan(scheduler)
    assert (step.rows[0].sequence, step.rows[0].start, step.rows[0].count) == (child, 0, 11)
    assert step.copies == []
