"""Adapters per sequence: what PEFT computes for each alone, whoever shares the batch."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from common.errors import UnknownAdapter
from common.parameters import GenerationParameters
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Failed, Job, Token, Tokens
from ops.tiny_models import tiny_options
from tests.integration.engine.adapters import peft_logits, write_adapter
from tests.integration.engine.processor import needs_int8
from tests.unit.engine.support import byte_level, save
from workers.engine.attention import ModelRefused
from workers.engine.engine import Engine
from workers.engine.model_loader import load_runner
from workers.engine.model_runner import TransformersRunner
from workers.engine.random_model import write_random_model
from workers.engine.sequence import Sequence

if TYPE_CHECKING:
    from tests.integration.engine.conftest import Driver

IDS = [3 + (i * i * 7 + 13 * i) % 190 for i in range(90)]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    write_random_model(folder, "llama", tiny_options("llama"))
    return folder


@pytest.fixture(scope="module")
def made(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters of different rank, targets and scaling."""
    folder = tmp_path_factory.mktemp("made")
    write_adapter(folder / "one", base, 1)
    write_adapter(
        folder / "two",
        base,
        2,
        r=9,
        target_modules=["q_proj", "o_proj", "gate_proj"],
        use_rslora=True,
        alpha_pattern={"layers.1.self_attn.o_proj": 3},
        rank_pattern={"gate_proj": 2},
    )
    return folder


@pytest.fixture
def byte_tokenizer(tmp_path: Path) -> Tokenizer:
    return save(byte_level(), tmp_path / "tokenizer")


@pytest.fixture
def load(base: Path) -> Callable[..., TransformersRunner]:
    def load(**options: Any) -> TransformersRunner:
        settings = Settings.of(
            model_id=str(base), engine_threads=1, max_batch_total_tokens=4096, device="cpu", **options
        )
        return load_runner(settings, lambda stage, fraction: None)

    return load


@pytest.fixture
def driver_of() -> Callable[[TransformersRunner], Driver]:
    from tests.integration.engine.conftest import Driver

    return Driver


def _sequence(driver: Driver, runner: TransformersRunner, ids: list[int], adapter: str | None) -> Sequence:
    sequence = driver.sequence(ids)
    sequence.adapter = None if adapter is None else runner.adapter(adapter)
    return sequence


@pytest.mark.parametrize("quantize", [None, pytest.param("int8", marks=needs_int8)])
def test_two_adapters_and_the_base_in_one_batch(
    quantize: str | None,
    base: Path,
    made: Path,
    load: Callable[..., TransformersRunner],
    driver_of: Callable[[TransformersRunner], Driver],
) -> None:
    runner = load(lora_adapters=f"one={made / 'one'},two={made / 'two'}", quantize=quantize)
    assert runner.card.adapters == ["one", "two"]
    driver = driver_of(runner)
    names = [None, "one", "two", "one"]

    def together(steps: list[int]) -> list[list[Any]]:
        sequences = [_sequence(driver, runner, IDS, name) for name in names]
        found: list[list[Any]] = [[] for _ in names]
        for count in steps:
            for logits, part in zip(found, driver.step(*((s, count) for s in sequences)), strict=True):
                logits.append(part)
        driver.free(*sequences)
        return found

    batched = [np.concatenate(parts) for parts in together([70, 1, 1, 18])]
    for name, logits in zip(names, batched, strict=True):
        expected = peft_logits(base, None if name is None else made / name, IDS)
        error = np.abs(logits - expected)
        if quantize is None:
            assert error.max() <= 2e-4 * np.abs(expected).max()
        else:  # PEFT computes on the weights as they are
            assert error.mean() <= 0.05 * expected.std()
        alone = _sequence(driver, runner, IDS, name)
        assert np.array_equal(logits, driver.step((alone, len(IDS)))[0])
        driver.free(alone)
    assert not np.allclose(batched[0], batched[1], atol=0.1)
    assert not np.allclose(batched[1], batched[2], atol=0.1)


def test_a_model_whose_layers_are_stored_the_other_way_round(
    tmp_path: Path, driver_of: Callable[[TransformersRunner], Driver]
) -> None:
    write_random_model(tmp_path / "base", "gpt2", tiny_options("gpt2"))
    write_adapter(tmp_path / "one", tmp_path / "base", 1, target_modules=["c_attn"], fan_in_fan_out=True)
    settings = Settings.of(
        model_id=str(tmp_path / "base"),
        engine_threads=1,
        max_batch_total_tokens=1024,
        device="cpu",
        lora_adapters=f"one={tmp_path / 'one'}",
    )
    runner = load_runner(settings, lambda stage, fraction: None)
    driver = driver_of(runner)
    (found,) = driver.step((_sequence(driver, runner, IDS, "one"), len(IDS)))
    expected = peft_logits(tmp_path / "base", tmp_path / "one", IDS)
    assert np.abs(found - expected).max() <= 2e-4 * np.abs(expected).max()


def _refresh_until(runner: TransformersRunner, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline, "the folder is not followed"
        runner.refresh()
        time.sleep(0.01)


def _swap(folder: Path, new: Path) -> None:
    """Replace an adapter's weights in one go."""
    shutil.copy(new / "adapter_model.safetensors", folder / "new.safetensors")
    (folder / "new.safetensors").replace(folder / "adapter_model.safetensors")


def test_adapters_come_change_and_go_while_serving(
    tmp_path: Path,
    base: Path,
    made: Path,
    load: Callable[..., TransformersRunner],
    driver_of: Callable[[TransformersRunner], Driver],
) -> None:
    folder = tmp_path / "adapters"
    shutil.copytree(made / "one", folder / "mine")
    runner = load(lora_folder=folder)
    driver = driver_of(runner)
    assert (runner.card.adapters, runner.follows) == (["mine"], True)
    old_logits, running = peft_logits(base, made / "one", IDS), _sequence(driver, runner, IDS, "mine")
    first = driver.step((running, 40))[0]

    write_adapter(tmp_path / "changed", base, 7)
    old = runner.adapter("mine")
    _swap(folder / "mine", tmp_path / "changed")
    _refresh_until(runner, lambda: runner.adapter("mine") is not old)
    # The one that runs goes on with the version it began with, beside one with the new version.
    fresh = _sequence(driver, runner, IDS, "mine")
    rest, renewed = driver.step((running, 50), (fresh, 90))
    assert np.abs(np.concatenate([first, rest]) - old_logits).max() <= 2e-4 * np.abs(old_logits).max()
    new_logits = peft_logits(base, tmp_path / "changed", IDS)
    assert np.abs(renewed - new_logits).max() <= 2e-4 * np.abs(new_logits).max()
    assert runner.adapter("mine").salt != old.salt

    # What cannot be read changes nothing.
    (folder / "mine" / "adapter_model.safetensors").write_bytes(b"half a fi")
    good = runner.adapter("mine")
    shutil.copytree(made / "two", folder / "other")
    _refresh_until(runner, lambda: runner.card.adapters == ["mine", "other"])
    assert runner.adapter("mine") is good

    shutil.rmtree(folder / "mine")
    _refresh_until(runner, lambda: runner.card.adapters == ["other"])
    with pytest.raises(UnknownAdapter, match=r"`adapter_id` names `mine`, which is not loaded; there are: `other`"):
        runner.adapter("mine")


def _job(name: str, adapter: str | None, *, generated: list[int] | None = None, **options: Any) -> Job:
    parameters = GenerationParameters(
        **{"max_new_tokens": 12, "seed": 3, "sample": True, "ignore_eos": True, **options}
    )
    return Job(
        id=name,
        model="",
        prompt_ids=IDS,
        generated_ids=generated or [],
        adapter=adapter,
        parameters=parameters,
        submitted_at=0.0,
    )


def _answers(engine: Engine, *jobs: Job) -> dict[str, list[Token]]:
    engine.add(jobs)
    answers: dict[str, list[Token]] = {job.id: [] for job in jobs}
    while engine.has_work:
        for event in engine.step():
            if isinstance(event.body, Tokens):
                answers[event.request].extend(event.body.tokens)
    return answers


def test_jobs_name_their_adapter(
    made: Path, load: Callable[..., TransformersRunner], byte_tokenizer: Tokenizer
) -> None:
    runner = load(lora_adapters=f"one={made / 'one'},two={made / 'two'}")
    engine = Engine(runner, byte_tokenizer, Settings.of(device="cpu"))
    # The same prompt one after the other: what one has computed is of no use to the others.
    alone = {str(name): _answers(engine, _job("x", name))["x"] for name in (None, "one", "two")}
    assert len({tuple(token.id for token in tokens) for tokens in alone.values()}) == 3
    together = _answers(engine, _job("None", None), _job("one", "one"), _job("two", "two"))
    assert together == alone
    ids = [token.id for token in alone["two"]]
    assert _answers(engine, _job("two", "two", generated=ids[:5]))["two"] == alone["two"][5:]
    engine.add([_job("x", "three")])
    (event,) = engine.take_events()
    assert isinstance(event.body, Failed)
    assert event.body.error_type == "validation"
    assert "`three`, which is not loaded; there are: `one`, `two`" in event.body.message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_dora": True}, "uses `use_dora`, which is not supported"),
        ({"bias": "lora_only"}, "has biases"),
        ({"modules_to_save": ["lm_head"]}, "uses `modules_to_save`"),
        ({"target_modules": ["lm_head"]}, "holds base_model.model.lm_head"),
        ({"target_modules": ["embed_tokens"]}, "holds base_model.model.model.embed_tokens"),
    ],
)
def test_adapters_that_do_more_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path, base: Path, load: Callable[..., TransformersRunner]
) -> None:
    write_adapter(tmp_path / "odd", base, 1, **options)
    with pytest.raises(ModelRefused, match=f"LORA_ADAPTERS: adapter `odd` {message}"):
        load(lora_adapters=f"odd={tmp_path / 'odd'}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "is of type IA3; only LORA"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base model; convert it first"),
    ],
)
def test_configurations_that_mean_something_else_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path, made: Path, load: Callable[..., TransformersRunner]
) -> None:
    shutil.copytree(made / "one", tmp_path / "odd")
    config = tmp_path / "odd" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(ModelRefused, match=message):
        load(lora_adapters=f"odd={tmp_path / 'odd'}")


def test_what_is_no_adapter_for_this_model_is_refused(
    tmp_path: Path, made: Path, load: Callable[..., TransformersRunner]
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelRefused, match=r"adapter `e` has no adapter_config\.json in"):
        load(lora_adapters=f"e={tmp_path / 'empty'}")
    with pytest.raises(ModelRefused, match="neither a folder nor a hub id"):
        load(lora_adapters="nowhere")
    with pytest.raises(ModelRefused, match=r"TGQ_LORA_FOLDER is .*, which is no folder"):
        load(lora_folder=tmp_path / "missing")
    write_random_model(tmp_path / "wide", "llama", {**tiny_options("llama"), "hidden_size": 32})
    write_adapter(tmp_path / "narrow", tmp_path / "wide", 1)
    with pytest.raises(ModelRefused, match=r"down_proj of 96 inputs and 32 outputs; this model's has 96 and 64"):
        load(lora_adapters=f"n={tmp_path / 'narrow'}")
