"""The seam between transformers' models and our key/value pool.

A model whose attention goes through transformers' `AttentionInterface` calls `attend` in every layer, with the step at
hand as the keyword argument `batch` that the runner gave to the model's own call. No cache object and no mask reach the
model: transformers makes no masks for an implementation that registered none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from workers.engine.sequence import Sequence

IMPLEMENTATION = "tgq"
"""Name under which `attend` is registered; a model uses it after `set_attn_implementation(IMPLEMENTATION)`."""


class ModelRefused(Exception):
    """This model, or these limits, cannot be served here; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """What a layer asks of its attention."""

    scale: float
    window: int | None = None
    """A token sees itself and the `window - 1` tokens before it; None: everything before it."""
    softcap: float | None = None
    """Scores become `softcap * tanh(score / softcap)`."""
    sinks: Tensor | None = None
    """`[heads]`: a score per head that takes part in the softmax and has no value."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Of one token's keys and values in one layer."""

    kv_heads: int
    key_width: int
    value_width: int


@dataclass(frozen=True, slots=True)
class StagedRow:
    """A row of the plan as it lies in the staged step: tokens `first` to `first + count`, from position `start` on."""

    sequence: Sequence
    start: int
    count: int
    first: int

    @property
    def length(self) -> int:
        """Keys the row's last token sees."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class StagedStep:
    """One step as flat arrays over its tokens, int64 `[tokens]`; padding tokens come last and are in no row."""

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    rows: list[StagedRow]


class AttentionBatch(Protocol):
    """One step's attention: what reaches `attend` through the model."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: LayerOptions) -> Tensor:
        """Store the keys and values of the step's tokens and attend to all that came before them.

        Args:
            query: `[tokens, heads, key_width]`.
            key: `[tokens, kv_heads, key_width]`.
            value: `[tokens, kv_heads, value_width]`.

        Returns:
            `[tokens, heads, value_width]`, contiguous.
        """


class AttentionBackend(Protocol):
    """Owns the keys and values of all sequences and makes each step's `AttentionBatch`."""

    pool: KVPool
    block_size: int

    @property
    def contiguous_blocks(self) -> bool:
        """Whether the blocks of one sequence must have consecutive numbers."""

    def order(self, row: StagedRow) -> tuple[int, int]:
        """Sort key: rows are staged in this order, so that rows which can share a kernel call are neighbours."""

    def prepare(self, step: StagedStep) -> AttentionBatch: ...


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    batch: AttentionBatch | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention as `AttentionInterface` calls it: tensors are `[1, heads, tokens, width]`, the answer `[1, tokens, heads, width]`."""
    if batch is None:
        raise ModelRefused(f"{type(module).__name__} keeps arguments of the model's call from its attention")
    if attention_mask is not None or position_bias is not None:
        raise ModelRefused(
            f"{type(module).__name__} needs a mask or a position bias of its own, which is not supported"
        )
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise ModelRefused(f"{type(module).__name__} does not say which layer it belongs to")
    options = LayerOptions(
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return batch.attend(layer, query, key, value, options).unsqueeze(0), None


AttentionInterface.register(IMPLEMENTATION, attend)


class KVPool:
    """Keys and values of every layer, `[slots, kv_heads, width]` each, zero at first.

    On CPU the memory is only reserved: the system hands out a page when it is first written.
    """

    def __init__(self, layers: dict[int, LayerShape], slots: int, dtype: torch.dtype, device: torch.device) -> None:
        def pool(kv_heads: int, width: int) -> Tensor:
            if device.type != "cpu":
                return torch.zeros(slots, kv_heads, width, dtype=dtype, device=device)
            # torch.zeros writes all of it at once; numpy leaves the zeroes to the system.
            raw = torch.from_numpy(np.zeros(slots * kv_heads * width * dtype.itemsize, dtype=np.uint8))
            return raw.view(dtype).view(slots, kv_heads, width)

        self.keys = {layer: pool(shape.kv_heads, shape.key_width) for layer, shape in layers.items()}
        self.values = {layer: pool(shape.kv_heads, shape.value_width) for layer, shape in layers.items()}

    def copy_blocks(self, sources: list[int], targets: list[int], block_size: int) -> None:
        """Copy blocks of slots in every layer; of each layer all sources are read before any target is written."""
        for tensor in (*self.keys.values(), *self.values.values()):
            blocks = tensor.view(-1, block_size, *tensor.shape[1:])
            index = torch.tensor([sources, targets], device=tensor.device)
            blocks.index_copy_(0, index[1], blocks.index_select(0, index[0]))

    @staticmethod
    def bytes_per_slot(layers: dict[int, LayerShape], dtype: torch.dtype) -> int:
        return sum(s.kv_heads * (s.key_width + s.value_width) for s in layers.values()) * dtype.itemsize


def pack_groups(query: Tensor, kv_heads: int) -> Tensor:
    """`[n, heads, width]` as `[n, kv_heads, heads / kv_heads, width]`: the heads that share keys, as rows of one query."""
    count, heads, width = query.shape
    return query.reshape(count, kv_heads, heads // kv_heads, width)


def with_sinks(output: Tensor, logsumexp: Tensor, sinks: Tensor) -> Tensor:
    """Attention with a sink from attention without: the softmax's sum grows by `exp(sink)`.

    Args:
        output: `[..., heads, width]`.
        logsumexp: `[..., heads]`, of the scores without sinks.
        sinks: `[heads]`.
    """
    return output * torch.sigmoid(logsumexp - sinks.to(logsumexp.dtype)).unsqueeze(-1).to(output.dtype)


def plain_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention by its definition, computed in float32, for what the kernels do not know.

    Args:
        query: `[batch, heads, rows, width]`.
        keys: `[batch, heads, length, width]`.
        values: `[batch, heads, length, value_width]`.
        mask: added to the scores; broadcasts to `[batch, heads, rows, length]`.
        sinks: `[heads, rows]`.

    Returns:
        `[batch, heads, rows, value_width]` in the type of `query`.
    """
    scores = torch.matmul(query.float(), keys.float().transpose(2, 3)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores += mask
    if sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        column = sinks.float()[None, :, :, None].expand(scores.shape[0], -1, -1, -1)
        weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    return torch.matmul(weights, values.float()).to(query.dtype)
