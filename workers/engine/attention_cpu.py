"""Attention on CPU, bit for bit the same however a sequence is batched, chunked or resumed.

Two things make it so. The keys a token at position p is given are always whole spans of 64 up to p's own span, the rest
masked: the same shape whether it is computed as a decode step or as part of a chunk. And every token is a batch entry of
its own in the kernel, so nothing of it depends on its neighbours; where the kernel turns out not to care, some tokens of
a chunk that lie in one span share an entry and read their keys once (see `tokens_per_entry`). In fast mode all of a chunk
is one entry in any case. A sequence's blocks are consecutive, so its keys and values are views of the pool and nothing is
gathered.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

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

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

_KERNEL_ROWS = 32
"""Rows of queries that it takes at once. What is left of more of them would be multiplied in another way."""

_HALF_SAMPLES = 12

SPAN = 64
"""Keys are given in multiples of this; also the block size, so that a span never leaves its sequence's blocks."""


class CpuAttention:
    """Backend over contiguous extents (see the module)."""

    block_size = SPAN
    contiguous_blocks = True

    def __init__(
        self, layers: dict[int, LayerShape], num_blocks: int, dtype: torch.dtype, *, strict: bool = True
    ) -> None:
        """
        Args:
            strict: keep a token's bits whatever it is computed with; otherwise be quick.
        """
        self.pool = KVPool(layers, num_blocks * SPAN, dtype, torch.device("cpu"))
        self.dtype = dtype
        self.strict = strict

    def order(self, row: StagedRow) -> tuple[int, int]:
        # Prefill first, then decode rows that see equally many keys, in the order of their extents (see `_runs`).
        return (row.length // SPAN if row.count == 1 else -1, row.sequence.blocks[0])

    def prepare(self, step: StagedStep) -> CpuBatch:
        return CpuBatch(self.pool, self.dtype, step, strict=self.strict)


@dataclass(frozen=True, slots=True)
class _Run:
    """What one kernel call computes: `count` entries of `tokens` neighbouring tokens each, from token `first` on. They see
    `length` keys each, the first entry from slot `base` on, each further one from `stride` slots on."""

    first: int
    count: int
    tokens: int
    base: int
    stride: int
    length: int
    mask: Tensor
    """0 where a key is seen and -inf where not: `[count, 1, 1, length]`, and with several tokens in an entry a row for
    each of them and each of the heads that share keys `[count, 1, tokens * group, length]`."""


class CpuBatch:
    """One step."""

    def __init__(self, pool: KVPool, dtype: torch.dtype, step: StagedStep, *, strict: bool) -> None:
        self._pool = pool
        self._dtype = dtype
        self._strict = strict
        self._positions = step.positions
        self._bases = np.zeros(len(step.ids), dtype=np.int64)
        self._chunks: list[slice] = []
        stale: list[npt.NDArray[np.int64]] = []
        for row in step.rows:
            base = row.sequence.blocks[0] * SPAN
            self._bases[row.first : row.first + row.count] = base
            if row.count > 1:
                self._chunks += _span_parts(row) if strict else [slice(row.first, row.first + row.count)]
            end = -(-row.length // SPAN) * SPAN
            if row.start <= end - SPAN and row.length < end:
                stale.append(np.arange(base + row.length, base + end))
        self._slots = torch.from_numpy(step.slots)
        # Slots behind the last token of a span that was just begun. An earlier sequence may have left NaN there, and
        # even a masked NaN spoils a sum.
        self._stale = torch.from_numpy(np.concatenate(stale)) if stale else None
        self._runs: dict[tuple[int | None, int, int], list[_Run]] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: LayerOptions) -> Tensor:
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        keys.index_copy_(0, self._slots, key)
        values.index_copy_(0, self._slots, value)
        if self._stale is not None:
            keys.index_fill_(0, self._stale, 0)
            values.index_fill_(0, self._stale, 0)
        packed = pack_groups(query, key.shape[1])
        parts = [
            _attend(packed[run.first : run.first + run.count * run.tokens], keys, values, run, options)
            for run in self._runs_for(packed, value, options)
        ]
        answer = parts[0] if len(parts) == 1 else torch.cat(parts)
        return answer.reshape(*query.shape[:2], value.shape[-1])

    def _runs_for(self, packed: Tensor, value: Tensor, options: LayerOptions) -> list[_Run]:
        """Those of layers with such a window and such heads; made once a step."""
        _, kv_heads, group, width = packed.shape
        most = len(packed)
        if not self._chunks or (self._strict and not _is_flash(packed, value, options)):
            most = 1
        elif self._strict:
            most = tokens_per_entry(kv_heads, group, width, options.scale, self._dtype)
        known = (options.window, group, most)
        if known not in self._runs:
            self._runs[known] = self._make_runs(*known)
        return self._runs[known]

    def _make_runs(self, window: int | None, group: int, most: int) -> list[_Run]:
        begin = np.zeros_like(self._positions)
        if window is not None:
            # Depends on the token's span alone, not on which tokens it is computed with.
            begin = np.maximum(self._positions // SPAN - -(-window // SPAN), 0) * SPAN
        lengths = (self._positions // SPAN + 1) * SPAN - begin
        bases = self._bases + begin
        runs: list[_Run] = []
        done = 0
        for chunk in [*(self._chunks if most > 1 else []), slice(len(bases), len(bases))]:
            for first, count, stride, length in _equal_steps(
                bases[done : chunk.start].tolist(), lengths[done : chunk.start].tolist()
            ):
                tokens = slice(done + first, done + first + count)
                mask = self._mask(tokens, length, begin[tokens], window)[:, None, None]
                runs.append(_Run(done + first, count, 1, int(bases[done + first]), stride, length, mask))
            done = chunk.start
            while done < chunk.stop:
                tokens_each = min(most, chunk.stop - done)
                count = (chunk.stop - done) // tokens_each
                tokens = slice(done, done + count * tokens_each)
                # In fast mode a chunk's tokens may begin at different keys; the first begins first, the last ends last.
                length = int(bases[tokens.stop - 1] + lengths[tokens.stop - 1] - bases[done])
                mask = self._mask(tokens, length, begin[done], window).repeat_interleave(group, dim=0)
                mask = mask.view(count, 1, tokens_each * group, length)
                runs.append(_Run(done, count, tokens_each, int(bases[done]), 0, length, mask))
                done = tokens.stop
        return runs

    def _mask(self, tokens: slice, length: int, begin: Any, window: int | None) -> Tensor:
        """`[tokens, length]` over the keys from `begin` on."""
        last = (self._positions[tokens] - begin)[:, None]
        keys = np.arange(length)
        hidden = keys > last
        if window is not None:
            hidden |= keys <= last - window
        mask = torch.zeros(hidden.shape, dtype=self._dtype)
        return mask.masked_fill_(torch.from_numpy(hidden), float("-inf"))


def _span_parts(row: StagedRow) -> list[slice]:
    """The tokens of a chunk, cut where a span ends."""
    ends = [*range((row.start // SPAN + 1) * SPAN, row.length, SPAN), row.length]
    starts = [row.start, *ends[:-1]]
    shift = row.first - row.start
    return [slice(start + shift, end + shift) for start, end in zip(starts, ends, strict=True)]


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


def _is_flash(query: Tensor, value: Tensor, options: LayerOptions) -> bool:
    return options.softcap is None and query.shape[-1] == value.shape[-1]


def _attend(query: Tensor, keys: Tensor, values: Tensor, run: _Run, options: LayerOptions) -> Tensor:
    """A run's queries `[tokens, kv_heads, group, width]` over a layer's pool: `[tokens, kv_heads, group, value_width]`."""
    kv_heads, group = query.shape[1:3]
    keys, values = _keys_of(keys, run), _keys_of(values, run)
    sinks = None if options.sinks is None else options.sinks.view(kv_heads, group).repeat(1, run.tokens)
    if run.tokens > 1:
        query = _entries(query, run.tokens)
    output: Tensor
    if _is_flash(query, values, options):
        output, logsumexp = _flash(query, keys, values, 0.0, False, attn_mask=run.mask, scale=options.scale)
        if sinks is not None:
            output = with_sinks(output, logsumexp, sinks)
    else:
        output = plain_attention(query, keys, values, run.mask, options.scale, options.softcap, sinks)
    if run.tokens > 1:
        output = output.reshape(run.count, kv_heads, run.tokens, group, -1).transpose(1, 2)
    return output.reshape(run.count * run.tokens, kv_heads, group, -1)


def _entries(query: Tensor, tokens: int) -> Tensor:
    """`[n * tokens, kv_heads, group, width]` queries as `[n, kv_heads, tokens * group, width]`."""
    count, kv_heads, group, width = query.shape
    apart = query.reshape(count // tokens, tokens, kv_heads, group, width)
    return apart.transpose(1, 2).reshape(count // tokens, kv_heads, tokens * group, width)


@functools.cache
def tokens_per_entry(kv_heads: int, group: int, width: int, scale: float, dtype: torch.dtype) -> int:
    """How many tokens may share a batch entry of the kernel without a change of any bit: so many and any fewer; 1: none.

    It depends on which product of matrices this processor and these sizes get (and where that applies a scale which is no
    power of two), so it is tried.
    """
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    most = max(_KERNEL_ROWS // group, 1)
    # Half precision hides most of what another order of summation changes, but not in every sample.
    samples = 1 if dtype == torch.float32 else _HALF_SAMPLES
    for length in (SPAN, 9 * SPAN, 17 * SPAN) * samples:
        keys, values = (random(length, kv_heads, width).transpose(0, 1)[None] for _ in range(2))
        query = random(most, kv_heads, group, width)
        last = torch.arange(length - SPAN // 2, length - SPAN // 2 + most)[:, None]
        mask = torch.zeros(most, length, dtype=dtype).masked_fill_(torch.arange(length) > last, float("-inf"))
        entries = (tensor.expand(most, -1, -1, -1) for tensor in (keys, values))
        alone, sums = _flash(query, *entries, 0.0, False, attn_mask=mask[:, None, None], scale=scale)
        for tokens in range(2, most + 1):
            rows = mask[:tokens].repeat_interleave(group, dim=0)[None, None]
            found, its = _flash(_entries(query[:tokens], tokens), keys, values, 0.0, False, attn_mask=rows, scale=scale)
            # The sums of the softmax are in float32.
            same = torch.equal(_entries(sums[:tokens, ..., None], tokens)[..., 0], its)
            if not same or not torch.equal(_entries(alone[:tokens], tokens), found):
                most = tokens - 1
                break
    return most
