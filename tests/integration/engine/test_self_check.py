"""The check before a model is served: rounding passes in every precision, wrong computation does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from common.settings import Settings
from ops.tiny_models import tiny_options
from workers.engine import model_loader
from workers.engine.attention import LayerOptions, ModelRefused
from workers.engine.attention_cpu import CpuBatch
from workers.engine.model_loader import load_runner
from workers.engine.model_runner import ModelCall, TransformersRunner
from workers.engine.plan import FloatArray
from workers.engine.random_model import random_model
from workers.engine.self_check import (
    FLOAT32_ROUNDING,
    TOKENS,
    Rounding,
    check_runner,
    eager_logits,
    rounding,
    row_errors,
)

PRECISIONS = ["float32", "float16", "bfloat16"]
FAMILIES = ["llama", "mistral", "gemma2", "qwen3", "gpt2", "phi", "mixtral", "deepseek_v3", "gpt_oss"]

Attend = Callable[[CpuBatch, int, Tensor, Tensor, Tensor, LayerOptions], Tensor]
_attend: Attend = CpuBatch.attend
_call = ModelCall.__call__


def _options(change: Callable[[LayerOptions], LayerOptions]) -> Attend:
    return lambda batch, layer, query, key, value, options: _attend(batch, layer, query, key, value, change(options))


def _neighbours_keys(layer_of: int) -> Attend:
    """In one layer every token's key is the one before its own."""

    def attend(batch: CpuBatch, layer: int, query: Tensor, key: Tensor, value: Tensor, options: LayerOptions) -> Tensor:
        return _attend(batch, layer, query, key.roll(1, 0) if layer == layer_of else key, value, options)

    return attend


def _wider(options: LayerOptions) -> LayerOptions:
    return replace(options, window=None if options.window is None else options.window + 1)


WRONG: dict[str, Attend] = {
    "a scale that is 20 % too large": _options(lambda o: replace(o, scale=1.2 * o.scale)),
    "a scale that is 20 % too small": _options(lambda o: replace(o, scale=0.8 * o.scale)),
    "no window": _options(lambda o: replace(o, window=None)),
    "a window one token too wide": _options(_wider),
    "no sinks": _options(lambda o: replace(o, sinks=None)),
    "no soft cap": _options(lambda o: replace(o, softcap=None)),
    "wrong keys in the last layer": _neighbours_keys(1),
}
POSITIONS: dict[str, Callable[[Any], Any]] = {
    "all tokens at the first position": lambda positions: positions * 0,
    "decode steps one position too far": lambda positions: positions + (positions > 16),
}


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str, str], TransformersRunner]:
    def load(family: str, dtype: str) -> TransformersRunner:
        random_model(family, tiny_options(family)).save_pretrained(tmp_path)
        settings = Settings.of(
            model_id=str(tmp_path), engine_threads=1, max_batch_total_tokens=1024, device="cpu", dtype=dtype
        )
        return load_runner(settings, lambda stage, fraction: None)

    return load


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_rounding_passes(family: str, dtype: str, load: Callable[[str, str], TransformersRunner]) -> None:
    assert load(family, dtype).card.dtype == f"torch.{dtype}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("family", "wrong"),
    [
        ("qwen3", "a scale that is 20 % too large"),
        ("deepseek_v3", "a scale that is 20 % too large"),
        ("qwen3", "a scale that is 20 % too small"),
        ("gemma2", "a scale that is 20 % too small"),
        ("mistral", "no window"),
        ("gpt_oss", "no window"),
        ("mistral", "a window one token too wide"),
        ("gemma2", "a window one token too wide"),
        ("gpt_oss", "no sinks"),
        ("gemma2", "no soft cap"),
        ("llama", "wrong keys in the last layer"),
        ("gpt2", "wrong keys in the last layer"),
        *((family, wrong) for family in ("llama", "gpt2", "phi", "gpt_oss") for wrong in POSITIONS),
    ],
)
def test_wrong_computation_is_refused(
    family: str,
    wrong: str,
    dtype: str,
    load: Callable[[str, str], TransformersRunner],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if wrong in POSITIONS:
        _misplace(monkeypatch, POSITIONS[wrong])
    else:
        monkeypatch.setattr(CpuBatch, "attend", WRONG[wrong])
    with pytest.raises(ModelRefused, match="the engine's logits differ from the model's own"):
        load(family, dtype)


def _misplace(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    monkeypatch.setattr(
        ModelCall, "__call__", lambda call, ids, positions, *rest: _call(call, ids, change(positions), *rest)
    )


def _spoil_the_last(
    batch: CpuBatch, layer: int, query: Tensor, key: Tensor, value: Tensor, options: LayerOptions
) -> Tensor:
    answer = _attend(batch, layer, query, key, value, options)
    # One row of 24 is less than the outliers the check allows.
    return answer.fill_(float("nan")) if layer == 0 and int(batch._positions.max()) == TOKENS - 1 else answer


Checked = tuple[TransformersRunner, FloatArray, Rounding]


@pytest.fixture(scope="module", params=PRECISIONS)
def checked(request: pytest.FixtureRequest) -> Checked:
    """The default model, and with what it was checked when it was loaded."""
    found: list[Any] = []

    def check(*given: Any) -> None:
        check_runner(*given)
        found.extend(given)

    settings = Settings.of(engine_threads=1, max_batch_total_tokens=1024, device="cpu", dtype=request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_loader, "check_runner", check)
        load_runner(settings, lambda stage, fraction: None)
    runner, reference, rounded = found
    return runner, reference, rounded


_OF_THE_DEFAULT_MODEL: dict[str, Attend] = {
    **{name: WRONG[name] for name in WRONG if name.startswith("a scale")},
    "wrong keys in one of 30 layers": _neighbours_keys(15),
    "a row of NaN": _spoil_the_last,
}


@pytest.mark.parametrize("wrong", [*_OF_THE_DEFAULT_MODEL, "all tokens at the first position"])
def test_the_default_model_passes_and_its_wrong_computation_does_not(
    wrong: str, checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wrong in POSITIONS:
        _misplace(monkeypatch, POSITIONS[wrong])
    else:
        monkeypatch.setattr(CpuBatch, "attend", _OF_THE_DEFAULT_MODEL[wrong])
    with pytest.raises(ModelRefused, match="the engine's logits differ"):
        check_runner(*checked)


def test_an_error_is_told_in_standard_deviations_of_its_row() -> None:
    expected = np.array([[1.0, -1.0, 1.0, -1.0], [10.0, -10.0, 10.0, -10.0], [3.0, 3.0, 3.0, 3.0]], dtype=np.float32)
    found = expected + np.array([0.5, -0.5, -0.5, 0.5], dtype=np.float32)
    assert row_errors(found, expected)[:2].tolist() == pytest.approx([0.5, 0.05])
    assert row_errors(expected, expected).tolist() == [0, 0, 0]
    assert np.isnan(row_errors(np.full_like(expected, np.nan), expected)).all()


def test_what_rounding_makes_is_measured_in_half_precision_and_leaves_the_model_as_it_was() -> None:
    model = random_model("llama", tiny_options("llama"))
    vocab_size = model.config.vocab_size
    assert rounding(model, torch.float32, vocab_size, eager_logits(model, vocab_size)) is FLOAT32_ROUNDING
    means = []
    for dtype in (torch.float16, torch.bfloat16):
        halved = nn.Module.to(model, dtype)
        reference = eager_logits(halved, vocab_size)
        means.append(float(rounding(halved, dtype, vocab_size, reference).rows.mean()))
        assert np.array_equal(eager_logits(halved, vocab_size), reference)
    # Three bits fewer.
    assert 4 < means[1] / means[0] < 16
    assert 0.002 < means[0] < 0.02
