"""Attention in plain torch over paged keys and values: any device, type and model, slow.

It serves the models that torch's flash attention does not take, and checks the other backends in tests.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from workers.engine.attention import (
    KVPool,
    LayerOptions,
    LayerShape,
    StagedRow,
    StagedStep,
    pack_groups,
    plain_attention,
)

PAGE = 256
"""Tokens per block by default. Flash attention 2 wants pages in multiples of 256."""


class PagedAttention:
    """What backends over pages share: any block may follow any other."""

    contiguous_blocks = False

    def __init__(
        self,
        layers: dict[int, LayerShape],
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        block_size: int = PAGE,
    ) -> None:
        self.block_size = block_size
        self.pool = KVPool(layers, num_blocks * block_size, dtype, device)
        self.device = device

    def order(self, row: StagedRow) -> tuple[int, int]:
        # Decode rows first: they and the chunks of prefill are two kernel calls.
        return (row.count > 1, 0)


class GatherAttention(PagedAttention):
    """Each sequence's keys and values are gathered from its blocks."""

    def prepare(self, step: StagedStep) -> GatherBatch:
        return GatherBatch(self.pool, self.device, self.block_size, step)


class GatherBatch:
    """One step."""

    def __init__(self, pool: KVPool, device: torch.device, block_size: int, step: StagedStep) -> None:
        self._pool = pool
        self._device = device
        self._block_size = block_size
        self._slots = torch.from_numpy(step.slots).to(device)
        self._rows = [(row, self._slots_of(row)) for row in step.rows]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: LayerOptions) -> Tensor:
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        keys.index_copy_(0, self._slots, key)
        values.index_copy_(0, self._slots, value)
        output = query.new_zeros(*query.shape[:2], value.shape[-1])
        for row, slots in self._rows:
            part = slice(row.first, row.first + row.count)
            output[part] = self._attend_row(query[part], keys[slots], values[slots], row, options)
        return output

    def _slots_of(self, row: StagedRow) -> Tensor:
        places = np.arange(row.length)
        blocks = np.asarray(row.sequence.blocks, dtype=np.int64)[places // self._block_size]
        return torch.from_numpy(blocks * self._block_size + places % self._block_size).to(self._device)

    def _attend_row(self, query: Tensor, keys: Tensor, values: Tensor, row: StagedRow, options: LayerOptions) -> Tensor:
        """`[count, heads, width]` queries over `[length, kv_heads, width]` keys and values."""
        packed = pack_groups(query, keys.shape[1])
        count, kv_heads, group, width = packed.shape
        places = torch.arange(row.start, row.length, device=self._device)[:, None]
        seen = torch.arange(row.length, device=self._device)
        hidden = seen > places
        if options.window is not None:
            hidden |= seen <= places - options.window
        mask = torch.zeros(count, row.length, device=self._device).masked_fill_(hidden, float("-inf"))
        sinks = None if options.sinks is None else options.sinks.view(kv_heads, group).repeat(1, count)
        # The queries of all tokens, and of the heads that share keys, as the rows of one product.
        answer = plain_attention(
            packed.permute(1, 0, 2, 3).reshape(1, kv_heads, count * group, width),
            keys.transpose(0, 1).unsqueeze(0),
            values.transpose(0, 1).unsqueeze(0),
            mask.repeat_interleave(group, dim=0),
            options.scale,
            options.softcap,
            sinks,
        )
        unpacked = answer.view(kv_heads, count, group, -1).permute(1, 0, 2, 3)
        return unpacked.reshape(count, kv_heads * group, -1)
