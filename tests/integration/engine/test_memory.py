"""Shared beginnings, children and preemption over a real model: the same bits as without them."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import msgspec
import pytest
import torch

from common.parameters import GenerationParameters
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Accepted, Failed, Job, Token, Tokens
from workers.engine.attention import LayerShape
from workers.engine.attention_cpu import CpuAttention
from workers.engine.attention_paged import GatherAttention
from workers.engine.engine import Engine
from workers.engine.messages import JobEvent
from workers.engine.model_runner import TransformersRunner
from workers.engine.plan import Copy, EngineBroken


@pytest.fixture
def make_engine(runner: TransformersRunner, tokenizer: Tokenizer, engine_settings: Settings) -> Any:
    def make_engine(over: TransformersRunner | None = None, **changes: Any) -> Engine:
        settings = engine_settings.model_copy(update={"max_batch_prefill_tokens": 128, **changes})
        return Engine(over or runner, tokenizer, settings)

    return make_engine


def make_job(name: str, prompt: list[int], count: int = 8, **fields: Any) -> Job:
    asked = {key: fields.pop(key) for key in ("sample", "seed", "children", "prefill_logprobs") if key in fields}
    parameters = GenerationParameters(max_new_tokens=count, ignore_eos=True, **{"seed": 3, **asked})
    return Job(id=name, model="", prompt_ids=prompt, parameters=parameters, submitted_at=0.0, **fields)


def run(engine: Engine, jobs: list[Job]) -> list[JobEvent]:
    engine.add(jobs)
    events = []
    while engine.has_work:
        events += engine.step()
    return events


def said(events: list[JobEvent], name: str) -> dict[int, list[Token]]:
    """Tokens of each child; a request that failed has none of its own."""
    found: dict[int, list[Token]] = {}
    for event in events:
        if event.request == name:
            assert isinstance(event.body, Accepted | Tokens), event.body
            if isinstance(event.body, Tokens):
                found.setdefault(event.body.child, []).extend(event.body.tokens)
    return found


def alone(make_engine: Any, job: Job) -> list[Token]:
    """What a job says when it has an engine without a prefix cache to itself; log probabilities included."""
    return said(run(make_engine(prefix_caching=False), [job]), job.id)[0]


def paged(runner: TransformersRunner, block_size: int, num_blocks: int) -> TransformersRunner:
    """The same model over scattered pages."""
    assert isinstance(runner._backend, CpuAttention)
    pool = runner._backend.pool
    shapes = {
        layer: LayerShape(keys.shape[1], keys.shape[2], pool.values[layer].shape[2])
        for layer, keys in pool.keys.items()
    }
    backend = GatherAttention(shapes, num_blocks, torch.float32, torch.device("cpu"), block_size)
    over = TransformersRunner.__new__(TransformersRunner)
    over.__dict__.update(runner.__dict__)
    over.block_size, over.num_blocks, over.contiguous_blocks = block_size, num_blocks, False
    over._backend = backend
    return over


def test_a_known_beginning_changes_no_bit(make_engine: Any, prose: list[int]) -> None:
    engine = make_engine()
    first, second = make_job("a", prose[:150]), make_job("b", prose[:150] + prose[300:320])
    run(engine, [first])
    assert engine.stats().prefix_hit_tokens == 0
    events = run(engine, [second, make_job("c", prose[:150])])
    assert engine.stats().prefix_hit_tokens == 256
    assert said(events, "b")[0] == alone(make_engine, second)
    assert said(events, "c")[0] == alone(make_engine, first)


def test_the_next_turn_of_a_conversation_begins_behind_the_last_answer(make_engine: Any, prose: list[int]) -> None:
    engine = make_engine()
    answer = [token.id for token in said(run(engine, [make_job("a", prose[:100], 40)]), "a")[0]]
    turn = make_job("b", [*prose[:100], *answer, *prose[400:410]])
    events = run(engine, [turn])
    assert engine.stats().prefix_hit_tokens == 128
    assert said(events, "b")[0] == alone(make_engine, turn)


def test_salts_keep_jobs_apart(make_engine: Any, prose: list[int]) -> None:
    engine = make_engine()
    run(engine, [make_job("a", prose[:70], 1, cache_salt="one")])
    run(engine, [make_job("b", prose[:70], 1, cache_salt="two")])
    assert engine.stats().prefix_hit_tokens == 0
    run(engine, [make_job("c", prose[:70], 1, cache_salt="two")])
    assert engine.stats().prefix_hit_tokens == 64


def test_prompt_logprobs_do_not_use_the_cache(make_engine: Any, prose: list[int]) -> None:
    engine = make_engine()
    run(engine, [make_job("a", prose[:100], 2)])
    asked = make_job("b", prose[:100], 2, prefill_logprobs=True)
    prefills = []
    for over in (engine, make_engine(prefix_caching=False)):
        body = run(over, [asked])[-1].body
        assert isinstance(body, Tokens)
        assert body.finish is not None
        prefills.append(body.finish.prefill)
    assert len(prefills[0]) == 100
    assert prefills[0] == prefills[1]


def test_children_say_what_their_seeds_say_alone(make_engine: Any, prose: list[int]) -> None:
    job = make_job("n", prose[:90], 10, children=3, sample=True)
    engine = make_engine()
    found = said(run(engine, [job]), "n")
    # The prompt once, and its last token for each further child.
    assert engine.stats().prompt_tokens == 92
    for child in range(3):
        assert found[child] == alone(make_engine, job.child(child))
    ids = [[token.id for token in found[child][:cut]] for child, cut in enumerate((4, 10, 7))]
    again = msgspec.structs.replace(job, attempt=2, generated_ids=ids[0], sibling_ids=ids[1:])
    rest = said(run(make_engine(), [again]), "n")
    assert [rest[child] for child in range(3)] == [found[0][4:], [], found[2][7:]]


def test_a_tenth_of_the_memory_is_enough_over_pages(
    make_engine: Any, runner: TransformersRunner, prose: list[int]
) -> None:
    jobs = [
        make_job(str(n), prose[20 * n : 20 * n + 5], 15, sample=n % 2 == 1, job_class=["interactive", "batch"][n % 2])
        for n in range(10)
    ]
    roomy = make_engine(paged(runner, 4, 200), prefix_caching=False)
    expected = run(roomy, jobs)
    assert roomy.stats().preemptions == 0
    tight = make_engine(paged(runner, 4, 6))
    events = run(tight, jobs)
    assert tight.stats().preemptions >= 3
    for job in jobs:
        # Pages are computed in other shapes from time to time, which may change last bits, but hardly a token.
        assert [t.id for t in said(events, job.id)[0]] == [t.id for t in said(expected, job.id)[0]]


def test_a_tenth_of_the_memory_is_enough_over_extents(
    make_engine: Any, runner: TransformersRunner, prose: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [make_job(f"batch {n}", prose[40 * n : 40 * n + 60], 6, job_class="batch") for n in range(5)]
    urgent = [make_job(f"urgent {n}", prose[30 * n : 30 * n + 60], 6, sample=True) for n in range(5)]
    expected = run(make_engine(prefix_caching=False), batch + urgent)
    monkeypatch.setattr(runner, "num_blocks", 3)
    engine = make_engine()
    engine.add(batch)
    events = engine.step() + engine.step()
    events += run(engine, urgent)
    assert engine.stats().preemptions >= 1
    for job in batch + urgent:
        assert said(events, job.id) == said(expected, job.id)


def test_pages_share_full_blocks_and_copy_the_last(
    make_engine: Any, runner: TransformersRunner, prose: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    over = paged(runner, 8, 60)
    made: list[Copy] = []
    copy = over.copy

    def noted(copies: Many[Copy]) -> None:
        made.extend(copies)
        copy(copies)

    monkeypatch.setattr(over, "copy", noted)
    engine = make_engine(over)
    job = make_job("n", prose[:30], 6, children=3, sample=True)
    found = said(run(engine, [job]), "n")
    assert len(made) == 2
    again = said(run(engine, [msgspec.structs.replace(job, id="m")]), "m")
    assert engine.stats().prefix_hit_tokens >= 24
    for child in range(3):
        expected = [token.id for token in alone(make_engine, job.child(child))]
        assert [token.id for token in found[child]] == [token.id for token in again[child]] == expected


def test_a_copy_that_fails_breaks_the_engine(
    make_engine: Any, runner: TransformersRunner, prose: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(copies: list[Copy]) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(runner, "copy", fail)
    engine = make_engine()
    with pytest.raises(EngineBroken, match="RuntimeError while the cache was copied"):
        run(engine, [make_job("n", prose[:20], 3, children=2)])


def test_out_of_memory_ends_the_largest_and_nobody_else(
    make_engine: Any, runner: TransformersRunner, prose: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = make_job("large", prose[:60], 4), make_job("small", prose[:20], 4)
    expected = alone(make_engine, small)
    call, failures = runner._model, [MemoryError()]

    def fail_once(*arguments: Any) -> torch.Tensor:
        if failures:
            raise failures.pop()
        return call(*arguments)

    monkeypatch.setattr(runner, "_model", fail_once)
    events = run(make_engine(), [small, large])
    failed = [event.body for event in events if event.request == "large"][-1]
    assert failed == Failed("generation", "Request failed during generation: the device is out of memory", True)
    assert said(events, "small")[0] == expected
