"""Attention on CPU, bit for bit the same however a sequence is batched, chunked or resumed.

Two things make it so. Every token is a batch entry of its own in the kernel, so nothing of it depends on its neighbours.
And the keys a token at position p is given are always whole spans of 64 up to p's own span, the rest masked: the same
shape whether it is computed as a decode step or as part of a chunk. A sequence's blocks are consecutive, so its keys
and values are views of the pool and nothing is gathered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
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
    with_sinks,
)

SPAN = 64
"""Keys are given in multiples of this; also the block size, so that a span never leaves its sequence's blocks."""


class CpuAttention:
    """Backend over contiguous extents (see the module)."""

    block_size = SPAN
    contiguous_blocks = True

    def __init__(self, layers: dict[int, LayerShape], num_blocks: int, dtype: torch.dtype) -> None:
        self.pool = KVPool(layers, num_blocks * SPAN, dtype, torch.device("cpu"))
        self.dtype = dtype

    def order(self, row: StagedRow) -> tuple[int, int]:
        # Prefill first, then decode rows that see equally many keys, in the order of their extents (see `_runs`).
        return (row.length // SPAN if row.count == 1 else -1, row.sequence.blocks[0])

    def prepare(self, step: StagedStep) -> CpuBatch:
        return CpuBatch(self.pool, self.dtype, step)


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring tokens that one kernel call computes: `count` of them from `first` on, with `length` keys each; the
    keys of the first begin at slot `base`, those of each further one `stride` slots on (0 within one sequence)."""

    first: int
    count: int
    base: int
    stride: int
    length: int
    mask: Tensor
    """`[count, 1, 1, length]`, 0 where a key is seen and -inf where not."""


class CpuBatch:
    """One step."""

    def __init__(self, pool: KVPool, dtype: torch.dtype, step: StagedStep) -> None:
        self._pool = pool
        self._dtype = dtype
        self._positions = step.positions
        self._bases = np.zeros(len(step.ids), dtype=np.int64)
        stale: list[npt.NDArray[np.int64]] = []
        for row in step.rows:
            base = row.sequence.blocks[0] * SPAN
            self._bases[row.first : row.first + row.count] = base
            end = -(-row.length // SPAN) * SPAN
            if row.start <= end - SPAN and row.length < end:
                stale.append(np.arange(base + row.length, base + end))
        self._slots = torch.from_numpy(step.slots)
        # Slots behind the last token of a span that was just begun. An earlier sequence may have left NaN there, and
        # even a masked NaN spoils a sum.
        self._stale = torch.from_numpy(np.concatenate(stale)) if stale else None
        self._runs: dict[int | None, list[_Run]] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: LayerOptions) -> Tensor:
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        keys.index_copy_(0, self._slots, key)
        values.index_copy_(0, self._slots, value)
        if self._stale is not None:
            keys.index_fill_(0, self._stale, 0)
            values.index_fill_(0, self._stale, 0)
        runs = self._runs.get(options.window)
        if runs is None:
            runs = self._runs[options.window] = self._make_runs(options.window)
        packed = pack_groups(query, key.shape[1])
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        grouped = pack_groups(output, key.shape[1])
        for run in runs:
            part = slice(run.first, run.first + run.count)
            grouped[part] = _attend(packed[part], _keys_of(keys, run), _keys_of(values, run), run.mask, options)
        return output

    def _make_runs(self, window: int | None) -> list[_Run]:
        begin = np.zeros_like(self._positions)
        if window is not None:
            # Depends on the token's span alone, not on which tokens it is computed with.
            begin = np.maximum(self._positions // SPAN - -(-window // SPAN), 0) * SPAN
        lengths = (self._positions // SPAN + 1) * SPAN - begin
        bases = self._bases + begin
        return [
            _Run(first, count, int(bases[first]), stride, length, self._mask(first, count, length, begin, window))
            for first, count, stride, length in _equal_steps(bases.tolist(), lengths.tolist())
        ]

    def _mask(self, first: int, count: int, length: int, begin: npt.NDArray[np.int64], window: int | None) -> Tensor:
        last = (self._positions - begin)[first : first + count, None]
        keys = np.arange(length)
        hidden = keys > last
        if window is not None:
            hidden |= keys <= last - window
        mask = torch.zeros(count, length, dtype=self._dtype).masked_fill_(torch.from_numpy(hidden), float("-inf"))
        return mask.view(count, 1, 1, length)


def _equal_steps(bases: list[int], lengths: list[int]) -> list[tuple[int, int, int, int]]:
    """Cut the tokens into runs of equal length whose bases are an ascending arithmetic progression.

    One strided view shows the keys of such a run. Tokens of one chunk are steps of 0; decode rows of sequences that
    were given equally large extents one after the other are equal steps; any two rows are a run of two.

    Returns:
        `(first, count, step, length)` of each run.
    """
    runs: list[tuple[int, int, int, int]] = []
    first = 0
    while first < len(bases):
        stop, length, stride = first + 1, lengths[first], 0
        while stop < len(bases) and lengths[stop] == length:
            step = bases[stop] - bases[stop - 1]
            if step < 0 or (stop > first + 1 and step != stride):
                break
            stride = step
            stop += 1
        runs.append((first, stop - first, stride, length))
        first = stop
    return runs


def _keys_of(pool: Tensor, run: _Run) -> Tensor:
    """View of a layer's pool: `[run.count, kv_heads, run.length, width]`."""
    _, heads, width = pool.shape
    slot = heads * width
    return pool.as_strided((run.count, heads, run.length, width), (run.stride * slot, width, slot, 1), run.base * slot)


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, options: LayerOptions) -> Tensor:
    """`[n, kv_heads, group, width]` queries over `[n, kv_heads, length, width]` keys and values."""
    sinks = None if options.sinks is None else options.sinks.view(query.shape[1:3])
    if options.softcap is not None or keys.shape[-1] != values.shape[-1]:
        return plain_attention(query, keys, values, mask, options.scale, options.softcap, sinks)
    output: Tensor
    output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, 0.0, False, attn_mask=mask, scale=options.scale
    )
    return output if sinks is None else with_sinks(output, logsumexp, sinks)
