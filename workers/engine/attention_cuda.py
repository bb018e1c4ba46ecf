"""Attention on a GPU: torch's own flash attention over paged keys and values."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import varlen

from workers.engine.attention import KVPool, LayerOptions, LayerShape, StagedRow, StagedStep, with_sinks
from workers.engine.attention_paged import PAGE, PagedAttention


def varlen_obstacle(shapes: dict[int, LayerShape], options: dict[int, LayerOptions], dtype: torch.dtype) -> str | None:
    """Why torch's flash attention cannot serve a model with these layers; None when it can."""
    known = inspect.signature(varlen.varlen_attn).parameters
    # Without `num_splits` the kernel chooses splits that give wrong results over pages.
    if missing := {"block_table", "seqused_k", "num_splits", "enable_gqa"} - set(known):
        return f"this torch's varlen_attn has no {', '.join(sorted(missing))}"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"it takes half precision, not {dtype}"
    if any(option.softcap is not None for option in options.values()):
        return "the model caps its scores"
    for shape in shapes.values():
        if shape.key_width != shape.value_width or shape.key_width > 256 or shape.key_width % 8:
            return f"heads are {shape.key_width} and {shape.value_width} wide"
    return None


class VarlenAttention(PagedAttention):
    """Backend over `torch.nn.attention.varlen`."""

    def prepare(self, step: StagedStep) -> VarlenBatch:
        return VarlenBatch(self.pool, self.device, step)


@dataclass(frozen=True, slots=True)
class _Call:
    """Neighbouring rows that one kernel call computes."""

    tokens: slice
    starts: Tensor
    """int32 `[rows + 1]`: where each row's tokens begin within the call's."""
    lengths: Tensor
    """int32 `[rows]`: keys of each row's sequence, those of this step included."""
    blocks: Tensor
    """int32 `[rows, most blocks]`; unused ends are dummy block 0, because the kernel may read them."""
    longest_query: int
    longest_key: int


class VarlenBatch:
    """One step."""

    def __init__(self, pool: KVPool, device: torch.device, step: StagedStep) -> None:
        self._pool = pool
        self._device = device
        self._slots = torch.from_numpy(step.slots).to(device)
        decode = [row for row in step.rows if row.count == 1]
        prefill = [row for row in step.rows if row.count > 1]
        self._calls = [self._call(rows) for rows in (decode, prefill) if rows]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: LayerOptions) -> Tensor:
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        keys.index_copy_(0, self._slots, key)
        values.index_copy_(0, self._slots, value)
        output = query.new_zeros(query.shape)
        for call in self._calls:
            output[call.tokens] = self._run(call, query[call.tokens].contiguous(), keys, values, options)
        return output

    @staticmethod
    def _run(call: _Call, query: Tensor, keys: Tensor, values: Tensor, options: LayerOptions) -> Tensor:
        _, heads, width = keys.shape
        answer = varlen.varlen_attn(
            query,
            keys.view(-1, PAGE, heads, width),
            values.view(-1, PAGE, heads, width),
            call.starts,
            None,
            call.longest_query,
            call.longest_key,
            return_aux=None if options.sinks is None else varlen.AuxRequest(lse=True),
            scale=options.scale,
            window_size=_window(options, call.longest_query),
            enable_gqa=query.shape[1] != heads,
            seqused_k=call.lengths,
            block_table=call.blocks,
            # One split is right over pages, and makes a row's result independent of the other rows.
            num_splits=1,
        )
        if isinstance(answer, Tensor):
            return answer
        output, logsumexp = answer
        assert options.sinks is not None
        # `[heads, tokens]` out of the kernel, whatever varlen_attn's documentation says.
        by_token = logsumexp.t() if logsumexp.shape[0] == query.shape[1] else logsumexp
        return with_sinks(output, by_token, options.sinks)

    def _call(self, rows: list[StagedRow]) -> _Call:
        lengths = np.array([row.length for row in rows], dtype=np.int32)
        used = -(-lengths // PAGE)
        table = np.zeros((len(rows), int(used.max())), dtype=np.int32)
        for index, row in enumerate(rows):
            table[index, : used[index]] = row.sequence.blocks[: used[index]]
        counts = [row.count for row in rows]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return _Call(
            slice(rows[0].first, rows[-1].first + rows[-1].count),
            torch.from_numpy(starts).to(self._device),
            torch.from_numpy(lengths).to(self._device),
            torch.from_numpy(table).to(self._device),
            max(counts),
            int(lengths.max()),
        )


def _window(options: LayerOptions, longest_query: int) -> tuple[int, int]:
    """The kernel's (left, right) window, counted without the token itself; -1 is no limit."""
    if options.window is not None:
        return (options.window - 1, 0)
    if longest_query > 1 or options.sinks is not None:
        return (-1, 0)
    # A single query sees all keys anyhow, and only without any window does the kernel read the keys once for all heads
    # that share them (which leaves the log-sum-exp in another order, so not where sinks need it).
    return (-1, -1)
