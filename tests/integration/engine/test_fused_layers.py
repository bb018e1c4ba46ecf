"""Layers are fused where that changes nothing, and nowhere else; in fast mode the model is the same but for rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from common.settings import Settings
from ops.tiny_models import tiny_options
from workers.engine.attention import IMPLEMENTATION, StagedRow
from workers.engine.attention_cpu import SPAN, CpuAttention, _span_parts, tokens_per_entry
from workers.engine.fuse import fuse_layers
from workers.engine.fused_layer import FusedLayer
from workers.engine.layer_probe import probe_layers
from workers.engine.model_loader import load_runner
from workers.engine.model_runner import TransformersRunner
from workers.engine.random_model import random_model, write_random_model
from workers.engine.self_check import eager_logits, whole_logits
from workers.engine.sequence import Sequence

if TYPE_CHECKING:
    from tests.integration.engine.conftest import Driver


@pytest.fixture
def driver_of() -> Callable[[TransformersRunner], Driver]:
    from tests.integration.engine.conftest import Driver

    return Driver


def _fuse(family: str, **options: Any) -> tuple[int, float]:
    """Layers that were fused, and how far the logits are off then."""
    model = random_model(family, {**tiny_options(family), **options})
    vocab_size = model.config.get_text_config().vocab_size
    expected = eager_logits(model, vocab_size)
    model.set_attn_implementation(IMPLEMENTATION)
    probe, _ = probe_layers(model, 4)
    parts = fuse_layers(model, probe)
    fused = sum(isinstance(module, FusedLayer) for module in model.modules())
    assert len(parts) == 4 * fused
    difference = np.abs(whole_logits(model, vocab_size) - expected).max() / np.abs(expected).max()
    return fused, float(difference)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "gemma"])
def test_layers_of_llamas_kind_are_fused(family: str) -> None:
    layers = tiny_options(family)["num_hidden_layers"]
    fused, difference = _fuse(family)
    assert fused == layers
    assert difference < 2e-4


@pytest.mark.parametrize("family", ["qwen3", "cohere", "granite", "phi3", "gpt2", "gemma2", "olmo2", "mixtral"])
def test_layers_of_another_kind_are_left_alone(family: str) -> None:
    # A multiplier of one would make a granite a llama.
    fused, difference = _fuse(family, **({"residual_multiplier": 0.5} if family == "granite" else {}))
    assert fused == 0
    assert difference < 2e-4


def test_a_layer_that_changes_with_the_position_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    rotate = modeling_llama.apply_rotary_pos_emb

    def scaled(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        # The rotation of late positions only; the first ones are what every llama has.
        q, k = rotate(q, k, cos, sin)
        return torch.where(torch.arange(q.shape[2])[:, None] < 8, q, 1.1 * q), k

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", scaled)
    assert _fuse("llama")[0] == 0


def test_chunks_are_cut_where_a_span_ends() -> None:
    def parts(start: int, count: int, first: int) -> list[tuple[int, int]]:
        sequence: Sequence = None  # type: ignore[assignment]  # not looked at
        return [(part.start, part.stop) for part in _span_parts(StagedRow(sequence, start, count, first))]

    assert parts(0, 64, 5) == [(5, 69)]
    assert parts(60, 10, 0) == [(0, 4), (4, 10)]
    assert parts(63, 2, 7) == [(7, 8), (8, 9)]
    assert parts(10, 3 * SPAN, 0) == [(0, 54), (54, 118), (118, 182), (182, 192)]


def test_tokens_share_an_entry_only_where_that_changes_no_bit() -> None:
    torch.set_num_threads(1)
    for heads in ((3, 3, 64), (4, 1, 64), (2, 4, 128), (1, 8, 16)):
        most = tokens_per_entry(*heads, heads[2] ** -0.5, torch.float32)
        assert 1 <= most <= 32 // heads[1]


@pytest.fixture(scope="module")
def fast() -> TransformersRunner:
    settings = Settings.of(engine_threads=1, max_batch_total_tokens=16_384, device="cpu", strict=False)
    return load_runner(settings, lambda stage, fraction: None)


def test_fast_mode_differs_by_rounding_only(
    fast: TransformersRunner, driver: Driver, driver_of: Callable[[TransformersRunner], Driver], prose: list[int]
) -> None:
    backend = fast._backend
    assert isinstance(backend, CpuAttention)
    assert not backend.strict
    ids = prose[:300]
    exact, quick = driver.whole(ids), driver_of(fast)
    for found in (quick.whole(ids), quick.in_chunks(ids, [70, 1, 1, 100, 90])):
        assert np.abs(found - exact).max() <= 1e-3 * np.abs(exact).max()


def test_fast_mode_keeps_a_window(model_folder: Path, driver_of: Callable[[TransformersRunner], Driver]) -> None:
    model = write_random_model(model_folder, "mistral", tiny_options("mistral"))
    ids = [3 + (i * i * 7 + 13 * i) % 190 for i in range(200)]
    with torch.inference_mode():
        expected = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    settings = Settings.of(
        model_id=str(model_folder), engine_threads=1, max_batch_total_tokens=1024, device="cpu", strict=False
    )
    driver = driver_of(load_runner(settings, lambda stage, fraction: None))
    for sizes in ([200], [90, 1, 60]):
        assert np.abs(driver.in_chunks(ids, sizes) - expected).max() <= 2e-4 * np.abs(expected).max()
