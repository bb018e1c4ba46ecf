"""Tiny random models of many families through the loader, the engine's path and the model's own eager forward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen
from transformers import PreTrainedModel

from common.settings import Settings
from common.wire import ModelCard
from ops.tiny_models import tiny_options
from tests.integration.engine.varlen_definition import extents_by_definition, varlen_by_definition
from workers.engine import attention_cuda
from workers.engine.attention import IMPLEMENTATION, AttentionBackend
from workers.engine.attention_cuda import VarlenAttention, varlen_obstacle
from workers.engine.attention_paged import PAGE, GatherAttention
from workers.engine.kernel_check import kernel_fault
from workers.engine.layer_probe import probe_layers
from workers.engine.model_loader import load_runner
from workers.engine.model_runner import TransformersRunner
from workers.engine.plan import FloatArray
from workers.engine.random_model import write_random_model

if TYPE_CHECKING:
    from tests.integration.engine.conftest import Driver

FAMILIES = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "cohere",
    "granite",
    "olmo2",
    "phi",
    "phi3",
    "gpt2",
    "gpt_neox",
    "opt",
    "starcoder2",
    "deepseek_v3",
    "mixtral",
    "gpt_oss",
]
"""A sample; `ops/check_models.py` checks every type."""
MIXTURES = ("deepseek_v3", "mixtral", "gpt_oss")
TOKENS = 150
"""More than two spans of keys, and many windows."""


@pytest.fixture
def make_model(model_folder: Path) -> Callable[[str], PreTrainedModel]:
    """Writes a random model of a family to `model_folder`; returns it with eager attention."""

    def make(family: str) -> PreTrainedModel:
        return write_random_model(model_folder, family, tiny_options(family))

    return make


def _eager(model: PreTrainedModel, ids: list[int]) -> FloatArray:
    with torch.inference_mode():
        logits: FloatArray = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    return logits


def _ids() -> list[int]:
    return [3 + (i * i * 7 + 13 * i) % 190 for i in range(TOKENS)]


def _assert_close(found: FloatArray, expected: FloatArray) -> None:
    assert np.abs(found - expected).max() <= 2e-4 * max(1.0, float(np.abs(expected).max()))


@pytest.fixture
def driver_of() -> Callable[[TransformersRunner], Driver]:
    from tests.integration.engine.conftest import Driver

    return Driver


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cpu_engine_computes_what_the_model_does(
    family: str,
    make_model: Callable[[str], PreTrainedModel],
    driver_of: Callable[[TransformersRunner], Driver],
    model_folder: Path,
) -> None:
    expected = _eager(make_model(family), _ids())
    settings = Settings.of(model_id=str(model_folder), engine_threads=1, max_batch_total_tokens=4096, device="cpu")
    driver = driver_of(load_runner(settings, lambda stage, fraction: None))
    _assert_close(driver.whole(_ids()), expected)
    mixed = driver.in_chunks(_ids(), [70, 1, 1, 1, 60, 1])
    _assert_close(mixed, expected)
    if family not in MIXTURES:  # an expert's tokens are computed together
        assert np.array_equal(mixed, driver.whole(_ids()))


def _paged_runner(
    model: PreTrainedModel, backend: Callable[..., AttentionBackend], dtype: torch.dtype = torch.float32
) -> TransformersRunner:
    model.set_attn_implementation(IMPLEMENTATION)
    probe, width = probe_layers(model, 16)
    card = ModelCard(
        model_id="",
        dtype="",
        device_type="cpu",
        max_total_tokens=512,
        max_batch_total_tokens=8 * PAGE,
        max_batch_size=8,
    )
    attention = backend(probe.shapes, 9, dtype, torch.device("cpu"))
    return TransformersRunner(model, attention, card, vocab_size=width, num_blocks=9, min_rows=1)


def _scattered(driver: Driver, ids: list[int]) -> FloatArray:
    """Logits of all ids in a sequence whose pages are neither consecutive nor in order (if they may), beside two others."""
    before, after = driver.sequence(ids[:5]), driver.sequence(ids[:40])
    mine = driver.sequence(ids, room=PAGE)
    if not driver.pool.contiguous:
        mine.blocks = mine.blocks[::-1]
    found = [driver.step((after, 3), (mine, PAGE - 20), (before, 1))[1]]
    while mine.computed < len(ids):
        shares = [(before, 1)] if before.computed < 5 else []
        shares += [(after, 1 + mine.computed % 2)] if after.computed < 38 else []
        found.append(driver.step(*shares, (mine, 1 if mine.computed % 3 else min(9, len(ids) - mine.computed)))[-1])
    driver.free(before, mine, after)
    return np.concatenate(found)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_gathered_pages_compute_what_the_model_does(
    family: str, make_model: Callable[[str], PreTrainedModel], driver_of: Callable[[TransformersRunner], Driver]
) -> None:
    model = make_model(family)
    ids = (_ids() * 2)[: PAGE + 30]
    expected = _eager(model, ids)
    driver = driver_of(_paged_runner(model, GatherAttention))
    _assert_close(_scattered(driver, ids), expected)


@pytest.mark.parametrize("pages", [True, False])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "gpt_oss"])
def test_what_is_staged_for_flash_attention_means_what_the_model_does(
    family: str,
    make_model: Callable[[str], PreTrainedModel],
    driver_of: Callable[[TransformersRunner], Driver],
    monkeypatch: pytest.MonkeyPatch,
    pages: bool,
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", varlen_by_definition)
    monkeypatch.setattr(attention_cuda, "attend_extents", extents_by_definition)
    monkeypatch.setattr(attention_cuda, "KNOWS_PAGES", pages)
    model = make_model(family)
    ids = (_ids() * 2)[: PAGE + 30]
    expected = _eager(model, ids)
    driver = driver_of(_paged_runner(model, VarlenAttention))
    _assert_close(_scattered(driver, ids), expected)


@pytest.mark.parametrize("pages", [True, False])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss"])
def test_a_kernel_that_computes_something_else_is_found_out(
    family: str, make_model: Callable[[str], PreTrainedModel], monkeypatch: pytest.MonkeyPatch, pages: bool
) -> None:
    model = make_model(family)
    model.set_attn_implementation(IMPLEMENTATION)
    probe, _ = probe_layers(model, 4)
    monkeypatch.setattr(attention_cuda, "KNOWS_PAGES", pages)
    cpu = torch.device("cpu")
    # The real one is not there.
    assert kernel_fault(probe, torch.float32, cpu) is not None
    monkeypatch.setattr(varlen, "varlen_attn", varlen_by_definition)
    monkeypatch.setattr(attention_cuda, "attend_extents", extents_by_definition)
    assert kernel_fault(probe, torch.float32, cpu) is None

    def wrong(definition: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
        def computed(query: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
            output, sums = definition(query, *arguments, **options)
            # The last key of the longer sequence is left out, say.
            output[-1] *= 0.9 if len(query) == 2 else 1.0
            return output, sums

        return computed

    monkeypatch.setattr(varlen, "varlen_attn", wrong(varlen_by_definition))
    monkeypatch.setattr(attention_cuda, "attend_extents", wrong(extents_by_definition))
    assert "off by" in (kernel_fault(probe, torch.float32, cpu) or "")


def test_flash_attention_is_passed_over_where_it_cannot_serve(make_model: Callable[[str], PreTrainedModel]) -> None:
    model = make_model("gemma2")
    model.set_attn_implementation(IMPLEMENTATION)
    probe, _ = probe_layers(model, 4)
    assert "caps" in (varlen_obstacle(probe.shapes, probe.options, torch.bfloat16) or "")
    assert "float32" in (varlen_obstacle(probe.shapes, {}, torch.float32) or "")
    assert varlen_obstacle(probe.shapes, {}, torch.bfloat16) is None
