"""Steps launched, captured, sampled and overlapped as on a GPU, with everything on CPU: the same answers as without.

Captured work is replayed here by running it again over the same memory, so that stale or moved inputs show.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention import varlen

from common.grammar import Grammar
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Cancelled, Failed, Job, ModelCard, Tokens
from ops.tiny_models import tiny_options
from tests.integration.engine.varlen_definition import extents_by_definition, varlen_by_definition
from tests.unit.engine.support import byte_level, last_of, make_job, run, save, tokens_of
from workers.engine import attention_cuda, overlap
from workers.engine.attention import IMPLEMENTATION
from workers.engine.attention_cuda import VarlenAttention
from workers.engine.attention_paged import GatherAttention, PagedAttention
from workers.engine.cuda_graphs import DecodeGraphs, Work
from workers.engine.device_runner import DeviceRunner, LaunchedStep
from workers.engine.engine import Engine
from workers.engine.layer_probe import probe_layers
from workers.engine.messages import JobEvent
from workers.engine.model_runner import TransformersRunner
from workers.engine.plan import StepPlan
from workers.engine.random_model import random_model

BLOCKS = 40
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


both_layouts = pytest.mark.parametrize("_kernel", ["pages", "extents"], indirect=True)


@pytest.fixture(autouse=True)
def _kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", varlen_by_definition)
    monkeypatch.setattr(attention_cuda, "attend_extents", extents_by_definition)
    monkeypatch.setattr(attention_cuda, "KNOWS_PAGES", getattr(request, "param", "pages") == "pages")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return save(byte_level(), tmp_path_factory.mktemp("tokenizer") / "byte_level")


def _card() -> ModelCard:
    return ModelCard(
        model_id="tiny",
        dtype="torch.float32",
        device_type="cuda",
        max_total_tokens=400,
        max_batch_total_tokens=(BLOCKS - 1) * 256,
        max_batch_size=8,
    )


class Recorded:
    """In place of a CUDA capture."""

    def __init__(self, *, fails: bool = False) -> None:
        self.sizes: list[str] = []
        self.replayed = 0
        self._fails = fails

    def __call__(self, work: Work) -> Work:
        if self._fails:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

        def replay() -> None:
            self.replayed += 1
            work()

        return replay


class Counting(DeviceRunner):
    """Counts what was launched ahead, and how many of the next step's tokens were not known to the host."""

    ahead = 0

    def launch(self, plan: StepPlan, after: Any = None) -> LaunchedStep:
        self.ahead += after is not None
        return super().launch(plan, after)


Make = Callable[..., Counting]


@pytest.fixture(scope="module")
def make() -> Make:
    model = random_model("llama", tiny_options("llama") | {"vocab_size": 400})
    model.set_attn_implementation(IMPLEMENTATION)
    probe, width = probe_layers(model, 16)

    def build(
        attention: type[PagedAttention] = VarlenAttention, capture: Recorded | None = None, blocks: int = BLOCKS
    ) -> Counting:
        graphs = None if capture is None else DecodeGraphs([1, 2, 4], capture)
        backend = attention(probe.shapes, blocks, torch.float32, CPU, longest=400)
        return Counting(model, backend, _card(), vocab_size=width, num_blocks=blocks, max_tokens=160, graphs=graphs)

    return build


def _jobs(tokenizer: Tokenizer) -> list[Job]:
    prompts = ["The quick brown fox", "the capital of France is", " dog", "def fox(", "lazy lazy lazy", "a"]
    rules: list[dict[str, Any]] = [
        {},
        {"sample": True, "temperature": 0.7, "top_p": 0.9},
        {"sample": True, "stop": ["o"], "max_new_tokens": 60},
        {"sample": True, "top_k": 20, "max_new_tokens": 1},
        {"sample": True, "min_p": 0.05, "children": 3, "max_new_tokens": 17},
        {"ignore_eos": True, "max_new_tokens": 300},
    ]
    return [
        make_job(tokenizer.ids(prompt), name=f"r{i}", seed=100 + i, **{"max_new_tokens": 40, **rule})
        for i, (prompt, rule) in enumerate(zip(prompts, rules, strict=True))
    ]


def _slow_jobs(tokenizer: Tokenizer) -> list[Job]:
    """What the host has to sample."""
    rules: list[dict[str, Any]] = [
        {"repetition_penalty": 1.3},
        {"top_n_tokens": 3, "sample": True},
        {"grammar": Grammar("regex", "[a-z ]{5,30}")},
        {"prefill_logprobs": True},
    ]
    ids = tokenizer.ids("the fox")
    return [make_job(ids, name=f"s{i}", seed=i, max_new_tokens=12, **rule) for i, rule in enumerate(rules)]


def _answers(events: list[JobEvent], jobs: list[Job]) -> dict[str, Any]:
    """By request and child: ids, texts, and how it ended."""
    found: dict[str, Any] = {}
    for event in events:
        assert not isinstance(event.body, Failed), event.body
        if isinstance(event.body, Tokens):
            tokens, ends = found.setdefault(f"{event.request}.{event.body.child}", ([], []))
            tokens += [(token.id, token.text, [top.id for top in token.top]) for token in event.body.tokens]
            ends += [(event.body.finish.reason, event.body.finish.generated_tokens)] if event.body.finish else []
    assert len(found) == sum(job.parameters.children for job in jobs)
    return found


def _run(runner: TransformersRunner, tokenizer: Tokenizer, jobs: list[Job], **settings: Any) -> dict[str, Any]:
    engine = Engine(runner, tokenizer, Settings.of(max_batch_prefill_tokens=150, **settings))
    return _answers(run(engine, jobs), jobs)


@both_layouts
def test_overlapped_captured_and_plain_steps_give_the_same_answers(make: Make, tokenizer: Tokenizer) -> None:
    jobs = _jobs(tokenizer)
    plain = make(GatherAttention)
    expected = _run(plain, tokenizer, jobs, overlap=False)
    assert plain.ahead == 0
    overlapped = make(GatherAttention)
    assert _run(overlapped, tokenizer, jobs) == expected
    assert overlapped.ahead > 100
    capture = Recorded()
    assert _run(make(capture=capture), tokenizer, jobs, overlap=False) == expected
    assert capture.replayed > 100
    both = make(capture=Recorded())
    assert _run(both, tokenizer, jobs) == expected
    assert both.ahead > 100


def test_what_the_host_samples_shares_steps_with_what_the_device_samples(make: Make, tokenizer: Tokenizer) -> None:
    jobs = [*_slow_jobs(tokenizer), *_jobs(tokenizer)[:3]]
    together = _run(make(capture=Recorded()), tokenizer, jobs)
    alone: dict[str, Any] = {}
    for job in jobs:
        alone |= _run(make(GatherAttention), tokenizer, [job], overlap=False)
    assert together == alone


@both_layouts
def test_jobs_that_come_and_go_meanwhile_change_nothing(make: Make, tokenizer: Tokenizer) -> None:
    expected = _run(make(GatherAttention), tokenizer, _jobs(tokenizer), overlap=False)
    for seed in range(2):
        random.seed(seed)
        # Blocks are so few that sequences wait for room and lose theirs, and freed ones are used again at once.
        runner = make(capture=Recorded(), blocks=7)
        engine = Engine(runner, tokenizer, Settings.of(max_batch_prefill_tokens=150))
        arrivals = random.sample(_jobs(tokenizer), 6)
        events: list[JobEvent] = []
        while arrivals or engine.has_work:
            if arrivals and random.random() < 0.3:
                job = arrivals.pop()
                engine.add([job, make_job(job.prompt_ids, name="gone", max_new_tokens=90, sample=True)])
            if random.random() < 0.2:
                engine.cancel(["gone"])
            events += engine.step()
        mine = [event for event in events if event.request != "gone" and not isinstance(event.body, Cancelled)]
        assert _answers(mine, _jobs(tokenizer)) == expected
        assert runner.ahead


def test_a_failing_step_ends_as_without_overlap(
    make: Make, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _run(make(GatherAttention), tokenizer, _jobs(tokenizer), overlap=False)
    runner = make(GatherAttention)
    launch = runner.launch
    failed: list[int] = []

    def sometimes(plan: StepPlan, after: Any = None) -> LaunchedStep:
        if after is not None and len(failed) < 5:
            failed.append(len(plan.rows))
            raise RuntimeError("out of luck")
        return launch(plan, after)

    monkeypatch.setattr(runner, "launch", sometimes)
    assert _run(runner, tokenizer, _jobs(tokenizer)) == expected
    assert len(failed) == 5


def test_scores_that_are_not_finite_end_one_request(
    make: Make, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make(GatherAttention)
    forward = runner._model.logits
    steps = []

    def broken(*arguments: Any) -> torch.Tensor:
        logits = forward(*arguments)
        steps.append(len(logits))
        if len(steps) >= 10:
            logits[0] = torch.nan
        return logits

    monkeypatch.setattr(runner._model, "logits", broken)
    jobs = [make_job(tokenizer.ids(text), name=text, max_new_tokens=30, ignore_eos=True) for text in ("fox", "dog")]
    events = run(Engine(runner, tokenizer, Settings.of()), jobs)
    first, second = (last_of(events, job.id) for job in jobs)
    assert isinstance(first, Failed)
    assert "not finite" in first.message
    assert len(tokens_of(events, jobs[0].id)) == 9
    # From then on it was the first row.
    assert isinstance(second, Failed)


def test_the_scheduler_has_its_say_now_and_then(
    make: Make, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap, "MOST_AHEAD", 3)
    runner = make(GatherAttention)
    job = make_job(tokenizer.ids("fox"), max_new_tokens=41, ignore_eos=True)
    engine = Engine(runner, tokenizer, Settings.of())
    planned = []
    plan = engine._scheduler.plan

    def counted(*arguments: Any) -> StepPlan:
        planned.append(arguments)
        return plan(*arguments)

    monkeypatch.setattr(engine._scheduler, "plan", counted)
    assert len(tokens_of(run(engine, [job]))) == 41
    assert runner.ahead == 41 - len(planned)
    assert len(planned) == 11


def test_a_model_that_cannot_be_captured_goes_without_graphs(
    make: Make, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    expected = _run(make(GatherAttention), tokenizer, _jobs(tokenizer), overlap=False)
    runner = make(capture=Recorded(fails=True))
    assert "without CUDA graphs: operation not permitted when stream is capturing" in caplog.text
    assert _run(runner, tokenizer, _jobs(tokenizer)) == expected
