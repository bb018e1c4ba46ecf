"""Tiny random models of many families through the loader, the engine's path and the model's own eager forward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen
from transformers import PreTrainedModel

from common.settings import Settings
from common.wire import ModelCard
from ops.tiny_models import tiny_options
from workers.engine.attention import IMPLEMENTATION, AttentionBackend
from workers.engine.attention_cuda import VarlenAttention, varlen_obstacle
from workers.engine.attention_paged import PAGE, GatherAttention
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
    """Logits of all ids in a sequence whose pages are neither consecutive nor in order, beside two others."""
    before, after = driver.sequence(ids[:5]), driver.sequence(ids[:40])
    mine = driver.sequence(ids, room=PAGE)
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


def _varlen_by_definition(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: varlen.AuxRequest | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor,
    block_table: Tensor,
    num_splits: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The documented contract of `varlen_attn` over pages, token by token; the kernel itself needs a GPU."""
    assert num_splits == 1
    assert cu_seq_k is None
    assert scale is not None
    assert enable_gqa == (query.shape[1] != key.shape[2])
    assert max_k == int(seqused_k.max())
    assert max_q == int(cu_seq_q.diff().max())
    assert cu_seq_q.dtype == seqused_k.dtype == block_table.dtype == torch.int32
    output, sums = torch.empty_like(query), torch.empty(query.shape[1], query.shape[0])
    group = query.shape[1] // key.shape[2]
    for index, used in enumerate(seqused_k.tolist()):
        first, stop = cu_seq_q[index : index + 2].tolist()
        pages = block_table[index].long()
        keys = key[pages].flatten(0, 1)[:used].repeat_interleave(group, dim=1)
        values = value[pages].flatten(0, 1)[:used].repeat_interleave(group, dim=1)
        for token in range(first, stop):
            # Queries are aligned with the end of the keys.
            place = used - (stop - token)
            low = 0 if window_size[0] < 0 else max(place - window_size[0], 0)
            high = used if window_size[1] < 0 else place + window_size[1] + 1
            scores = torch.einsum("hd,khd->hk", query[token], keys[low:high]) * scale
            sums[:, token] = scores.logsumexp(-1)
            output[token] = torch.einsum("hk,khd->hd", scores.softmax(-1), values[low:high])
    return (output, sums) if return_aux is not None and return_aux.lse else output


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "gpt_oss"])
def test_what_is_staged_for_flash_attention_means_what_the_model_does(
    family: str,
    make_model: Callable[[str], PreTrainedModel],
    driver_of: Callable[[TransformersRunner], Driver],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", _varlen_by_definition)
    model = make_model(family)
    ids = (_ids() * 2)[: PAGE + 30]
    expected = _eager(model, ids)
    driver = driver_of(_paged_runner(model, VarlenAttention))
    _assert_close(_scattered(driver, ids), expected)


def test_flash_attention_is_passed_over_where_it_cannot_serve(make_model: Callable[[str], PreTrainedModel]) -> None:
    model = make_model("gemma2")
    model.set_attn_implementation(IMPLEMENTATION)
    probe, _ = probe_layers(model, 4)
    assert "caps" in (varlen_obstacle(probe.shapes, probe.options, torch.bfloat16) or "")
    assert "float32" in (varlen_obstacle(probe.shapes, {}, torch.float32) or "")
    assert varlen_obstacle(probe.shapes, {}, torch.bfloat16) is None
