"""Several sequences from one prompt: `best_of` and `n`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.errors import GenerationFailed
from common.tokenizer import Tokenizer
from common.wire import Accepted, Cancelled, Failed, Job, Token, Tokens
from tests.unit.engine.engines import bodies, make_engine
from tests.unit.engine.support import Clock, HashedModel, make_job, run
from workers.engine.messages import JobEvent
from workers.engine.plan import RequestFault, StepPlan

PROMPT = [15, 16, 17, 18, 19, 20, 21, 22, 23]


def children_job(children: int = 3, **parameters: Any) -> Job:
    return make_job(PROMPT, children=children, **{"sample": True, "ignore_eos": True, "seed": 7, **parameters})


def by_child(events: list[JobEvent], request: str = "r") -> dict[int, list[Token]]:
    found: dict[int, list[Token]] = {}
    for body in bodies(events, request):
        if isinstance(body, Tokens):
            found.setdefault(body.child, []).extend(body.tokens)
    return found


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_each_child_is_what_its_seed_gives_alone(tokenizer: Tokenizer, contiguous: bool, prefix_caching: bool) -> None:
    model = HashedModel(tokenizer.vocab_size, contiguous=contiguous)
    job = children_job(top_n_tokens=2)
    found = by_child(run(make_engine(tokenizer, model, prefix_caching=prefix_caching), [job]))
    assert len({tuple(token.id for token in tokens) for tokens in found.values()}) == 3
    for child in range(3):
        alone = make_job(PROMPT, sample=True, ignore_eos=True, top_n_tokens=2, seed=job.parameters.child_seed(child))
        assert found[child] == by_child(run(make_engine(tokenizer), [alone]))[0]


def test_the_prompt_is_computed_once(tokenizer: Tokenizer) -> None:
    model = HashedModel(tokenizer.vocab_size)
    engine = make_engine(tokenizer, model, prefix_caching=False)
    run(engine, [children_job(max_new_tokens=2)])
    rows = [row for plan in model.plans for row in plan]
    assert rows == [("r", 0, 9, 1), ("r", 9, 1, 1), ("r", 8, 1, 1), ("r", 8, 1, 1), ("r", 9, 1, 1), ("r", 9, 1, 1)]
    assert engine.stats().prompt_tokens == 11


def test_the_request_ends_with_its_last_child(tokenizer: Tokenizer) -> None:
    events = run(make_engine(tokenizer), [children_job(max_new_tokens=3)])
    finishes = [body for body in bodies(events) if isinstance(body, Tokens) and body.finish]
    assert [(body.child, body.unfinished, body.ends) for body in finishes] == [
        (0, 2, False),
        (1, 1, False),
        (2, 0, True),
    ]
    assert bodies(events)[-1] is finishes[-1]
    assert all(body.finish and body.finish.generated_tokens == 3 for body in finishes)


def test_prompt_details_come_with_the_first_child(tokenizer: Tokenizer) -> None:
    events = run(make_engine(tokenizer), [children_job(max_new_tokens=2, prefill_logprobs=True)])
    prefills = [body.finish.prefill for body in bodies(events) if isinstance(body, Tokens) and body.finish]
    assert [len(prefill) for prefill in prefills] == [9, 0, 0]


def test_resumed_with_what_each_child_has(tokenizer: Tokenizer) -> None:
    whole = by_child(run(make_engine(tokenizer), [children_job()]))
    for cuts in ([3, 0, 5], [20, 4, 4], [1, 20, 20], [7, 20, 3]):
        ids = [[token.id for token in whole[child][:cut]] for child, cut in enumerate(cuts)]
        again = msgspec.structs.replace(children_job(), attempt=2, generated_ids=ids[0], sibling_ids=ids[1:])
        events = run(make_engine(tokenizer), [again])
        assert isinstance(events[0].body, Accepted)
        assert sum(body.ends for body in bodies(events) if isinstance(body, Tokens)) == 1
        assert bodies(events)[-1].ends
        rest = by_child(events)
        for child, cut in enumerate(cuts):
            assert rest[child] == whole[child][cut:]
    ids = [[token.id for token in whole[child]] for child in range(3)]
    done = msgspec.structs.replace(children_job(), generated_ids=ids[0], sibling_ids=ids[1:])
    events = run(make_engine(tokenizer), [done])
    assert [(body.child, body.offset, body.ends) for body in bodies(events)[1:]] == [
        (0, 20, False),
        (1, 20, False),
        (2, 20, True),
    ]


def test_a_fault_of_one_child_ends_the_request(tokenizer: Tokenizer) -> None:
    model = HashedModel(tokenizer.vocab_size)

    def fault(plan: StepPlan) -> None:
        for row in plan.rows:
            if row.sequence.child == 1 and row.sequence.generated == 2:
                raise RequestFault(row.sequence, GenerationFailed("bad"))

    model.before_forward = fault
    engine = make_engine(tokenizer, model)
    events = run(engine, [children_job(), make_job([5], name="b", ignore_eos=True)])
    assert [type(body) for body in bodies(events) if isinstance(body, (Failed, Cancelled))] == [Failed]
    assert isinstance(bodies(events)[-1], Failed)
    assert len(by_child(events, "b")[0]) == 20
    assert engine.stats().reserved_tokens == 0


@pytest.mark.parametrize("steps", range(5))
def test_cancelled_at_any_time_all_are_gone(tokenizer: Tokenizer, steps: int) -> None:
    engine = make_engine(tokenizer, HashedModel(tokenizer.vocab_size, max_batch_size=2), max_batch_prefill_tokens=4)
    engine.add([children_job()])
    for _ in range(steps):
        engine.step()
    engine.cancel(["r"])
    assert engine.take_events()[-1].body == Cancelled()
    assert not engine.has_work
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.reserved_tokens) == (0, 0, 0)
    assert engine._scheduler.pool.free_blocks == engine._scheduler.pool.capacity


def test_a_deadline_does_not_count_once_the_first_child_runs(tokenizer: Tokenizer) -> None:
    unix_time = Clock()
    engine = make_engine(tokenizer, HashedModel(tokenizer.vocab_size, max_batch_size=1), unix_time=unix_time)
    engine.add([msgspec.structs.replace(children_job(), deadline=unix_time.now + 1)])
    engine.step()
    unix_time.now += 2
    assert {child: len(tokens) for child, tokens in by_child(run(engine, [])).items()} == {0: 19, 1: 20, 2: 20}


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (children_job(children=0), "`children` must be between 1 and 128"),
        (children_job(children=129), "`children` must be between 1 and 128"),
        (msgspec.structs.replace(children_job(), sibling_ids=[[1], [2], [3]]), "tokens of 4 children"),
        (msgspec.structs.replace(children_job(), sibling_ids=[[1] * 21]), "more than `max_new_tokens`"),
        (msgspec.structs.replace(children_job(), sibling_ids=[[10**6]]), "generated token ids must be"),
    ],
)
def test_bad_jobs_are_refused(tokenizer: Tokenizer, job: Job, message: str) -> None:
    engine = make_engine(tokenizer)
    engine.add([job])
    (event,) = engine.take_events()
    assert isinstance(event.body, Failed)
    assert message in event.body.message


def test_the_cost_counts_all_children() -> None:
    assert (children_job().length, children_job().cost, make_job(PROMPT).cost) == (29, 87, 29)
