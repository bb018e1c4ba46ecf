"""The step, when requests come again, are cancelled or fail: every job ends once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import GenerationFailed
from common.tokenizer import Tokenizer
from common.wire import Accepted, Cancelled, Failed, Job, Tokens
from tests.unit.engine.engines import bodies, greedy, ids_of, make_engine
from tests.unit.engine.support import (
    HashedModel,
    last_of,
    make_job,
    run,
)
from workers.engine.messages import JobEvent
from workers.engine.plan import EngineBroken, RequestFault, StepPlan

# -- attempts


def test_a_newer_attempt_takes_the_place_of_an_older_one(tokenizer: Tokenizer) -> None:
    engine = make_engine(tokenizer)
    engine.add([make_job([5], ignore_eos=True)])
    engine.step()
    events = run(engine, [make_job([5], attempt=2, ignore_eos=True)])
    assert (events[0].attempt, events[0].body) == (1, Cancelled())
    assert {event.attempt for event in events[1:]} == {2}
    assert len(ids_of(events)) == 20


def test_an_older_or_repeated_attempt_disturbs_nothing(tokenizer: Tokenizer) -> None:
    engine = make_engine(tokenizer)
    engine.add([make_job([5], attempt=2, ignore_eos=True)])
    engine.step()
    engine.add([make_job([5], attempt=1), make_job([5], attempt=2)])
    events = engine.take_events()
    assert [(event.attempt, event.body) for event in events] == [(1, Cancelled()), (2, Accepted(""))]
    assert len(ids_of(run(engine, []))) == 19


# -- cancellation


def test_cancelled_anywhere_it_is_gone_at_once(tokenizer: Tokenizer) -> None:
    model = HashedModel(tokenizer.vocab_size, max_batch_size=2)
    engine = make_engine(tokenizer, model)
    engine.add(
        [make_job([5] * length, name=name, ignore_eos=True) for name, length in (("decode", 3), ("prefill", 60))]
    )
    engine.add([make_job([5], name="waiting")])
    engine.step()
    engine.cancel(["decode", "prefill", "waiting", "unknown"])
    assert [
        (event.request, event.body) for event in engine.take_events() if not isinstance(event.body, (Accepted, Tokens))
    ] == [
        ("decode", Cancelled()),
        ("prefill", Cancelled()),
        ("waiting", Cancelled()),
    ]
    assert not engine.has_work
    assert engine.next_due() is None
    assert engine.stats().reserved_tokens == 0
    assert model.released == ["decode", "prefill", "waiting"]


# -- faults


def test_a_fault_of_one_request_ends_that_one(tokenizer: Tokenizer) -> None:
    model = HashedModel(tokenizer.vocab_size)

    def fault(plan: StepPlan) -> None:
        for row in plan.rows:
            if row.sequence.job.id == "bad" and row.sequence.generated == 3:
                raise RequestFault(row.sequence, GenerationFailed("bad"))

    model.before_forward = fault
    jobs = [make_job([5 + n], name=name, ignore_eos=True) for n, name in enumerate(["a", "bad", "b"])]
    events = run(make_engine(tokenizer, model), jobs)
    assert last_of(events, "bad") == Failed("generation", "Request failed during generation: bad", False)
    assert len(ids_of(events, "bad")) == 3
    for n, name in ((0, "a"), (2, "b")):
        assert ids_of(events, name) == greedy([5 + n], 20, tokenizer.vocab_size)


def test_a_fault_of_unknown_origin_ends_the_step_retryably(tokenizer: Tokenizer) -> None:
    model = HashedModel(tokenizer.vocab_size, max_batch_size=2)
    engine = make_engine(tokenizer, model)
    engine.add([make_job([5], name=name, ignore_eos=True) for name in "abc"])
    engine.step()

    def fail(plan: StepPlan) -> None:
        raise RuntimeError("prompt text must not get out")

    model.before_forward = fail
    events = engine.step()
    for name in "ab":
        failed = last_of(events, name)
        assert isinstance(failed, Failed)
        assert (failed.error_type, failed.retryable) == ("generation", True)
        assert failed.message == "Request failed during generation: RuntimeError in the model"
    model.before_forward = lambda plan: None
    assert isinstance(last_of(run(engine, []), "c"), Tokens)
    stats = engine.stats()
    assert stats.inference_failure == {"decode": 1}
    assert stats.reserved_tokens == 0


def test_a_broken_device_is_not_survived(tokenizer: Tokenizer) -> None:
    model = HashedModel(tokenizer.vocab_size)

    def broken(plan: StepPlan) -> None:
        raise EngineBroken("the device is gone")

    model.before_forward = broken
    engine = make_engine(tokenizer, model)
    engine.add([make_job([5])])
    with pytest.raises(EngineBroken):
        engine.step()


def test_bad_scores_end_that_request(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = HashedModel(tokenizer.vocab_size)
    forward = model.forward

    def spoilt(plan: StepPlan) -> Any:
        logits = forward(plan)
        logits[0, 3] = np.nan
        return logits

    monkeypatch.setattr(model, "forward", spoilt)
    engine = make_engine(tokenizer, model)
    engine.add([make_job([5], name="a"), make_job([6], name="b", ignore_eos=True)])
    events = engine.step()
    failed = last_of(events, "a")
    assert isinstance(failed, Failed)
    assert "not finite" in failed.message
    assert len(ids_of(events, "b")) == 1


def test_a_fault_of_the_text_ends_that_request(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    from workers.engine.answer import Answer

    append = Answer.append

    def spoilt(self: Answer, choice: Any) -> Any:
        if self.next_offset == 2:
            raise ValueError("cannot decode")
        return append(self, choice)

    engine = make_engine(tokenizer)
    monkeypatch.setattr(Answer, "append", spoilt)
    engine.add([make_job([5], name="a", ignore_eos=True)])
    engine.add([make_job([5], name="b", ignore_eos=True, max_new_tokens=2)])
    events = run(engine, [])
    assert isinstance(last_of(events, "a"), Failed)
    assert isinstance(last_of(events, "b"), Tokens)


# -- whatever happens


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 40), st.integers(1, 8)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
        st.tuples(st.just("fault"), st.integers(0, 3), st.just(0)),
    ),
    max_size=50,
)


@settings(max_examples=60)
@given(operations=operations, contiguous=st.booleans())
def test_every_job_ends_once_and_nothing_is_left(
    tokenizer: Tokenizer, operations: list[tuple[str, int, int]], contiguous: bool
) -> None:
    model = HashedModel(tokenizer.vocab_size, num_blocks=25, contiguous=contiguous, max_batch_size=4)
    engine = make_engine(tokenizer, model)
    events: list[JobEvent] = []
    jobs: dict[str, Job] = {}
    for number, (operation, x, y) in enumerate(operations):
        if operation == "add":
            jobs[str(number)] = make_job([3 + x] * x, name=str(number), max_new_tokens=y, ignore_eos=True)
            engine.add([jobs[str(number)]])
        elif operation == "cancel":
            engine.cancel([str(x)])
        else:
            if operation == "fault":

                def fault(plan: StepPlan, victim: int = x) -> None:
                    model.before_forward = lambda plan: None
                    if victim == 0:
                        raise RuntimeError("of unknown origin")
                    row = plan.rows[victim % len(plan.rows)]
                    raise RequestFault(row.sequence, GenerationFailed("at fault"))

                model.before_forward = fault
            events += engine.step()
    model.before_forward = lambda plan: None
    events += run(engine, [])
    for request, job in jobs.items():
        ended = [
            b
            for b in bodies(events, request)
            if isinstance(b, (Failed, Cancelled)) or (isinstance(b, Tokens) and b.finish)
        ]
        assert len(ended) == 1
        assert ended[0] == bodies(events, request)[-1]
        ids = ids_of(events, request)
        assert ids == greedy(job.prompt_ids, len(ids), tokenizer.vocab_size)
    assert sorted(model.released) == sorted(jobs)
    assert engine._scheduler.pool.free_blocks == 24
    assert not engine._scheduler.running
    assert not engine._scheduler.waiting
    assert not engine._requests
