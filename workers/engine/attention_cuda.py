"""Attention on a GPU: torch's own flash attention 2, over pages or extents.

Where torch's interface knows no pages (before 2.12) a sequence's blocks are one extent, reserved whole at its admission: the
kernel reads the keys of each sequence from a start and up to a length of its own, wherever in the pool they are.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.attention import varlen

from workers.engine.attention import KVPool, LayerOptions, LayerShape, StagedRow, StagedStep, with_sinks
from workers.engine.attention_paged import PAGE, PagedAttention
from workers.engine.staging import Upload

KNOWS_PAGES = {"block_table", "seqused_k", "num_splits", "enable_gqa"} <= set(
    inspect.signature(varlen.varlen_attn).parameters
)
"""Whether this torch's `varlen_attn` reads pages, and in one split: those that it chooses by itself go wrong over pages."""


def varlen_obstacle(shapes: dict[int, LayerShape], options: dict[int, LayerOptions], dtype: torch.dtype) -> str | None:
    """Why torch's flash attention cannot serve a model with these layers; None when it can."""
    if dtype not in (torch.float16, torch.bfloat16):
        return f"it takes half precision, not {dtype}"
    if any(option.softcap is not None for option in options.values()):
        return "the model caps its scores"
    for shape in shapes.values():
        if shape.key_width != shape.value_width or shape.key_width > 256 or shape.key_width % 8:
            return f"heads are {shape.key_width} and {shape.value_width} wide"
    return None


class VarlenAttention(PagedAttention):
    """Backend over `torch.nn.attention.varlen`, or over what is beneath it."""

    fixed_shapes = True

    @property
    def contiguous_blocks(self) -> bool:
        return not KNOWS_PAGES

    def stage(self, step: StagedStep, upload: Upload) -> VarlenBatch:
        return VarlenBatch(self.pool, self.width, step, upload)


@dataclass(frozen=True, slots=True)
class _Call:
    """Neighbouring rows that one kernel call computes."""

    tokens: slice
    query_starts: Tensor
    """int32 `[rows + 1]`: where each row's tokens begin within the call's."""
    key_starts: Tensor
    """int32 `[rows + 1]`: the slot where each row's extent begins. Over pages the same as if the keys were packed: the kernel
    wants it, and reads the pages."""
    lengths: Tensor
    """int32 `[rows]`: keys of each row's sequence, those of this step included."""
    blocks: Tensor | None
    """int32 `[rows, width]`; unused ends are dummy block 0, because the kernel may read them. None over extents."""
    longest_query: int


class VarlenBatch:
    """One step. In a step of decode rows alone, its padding tokens are rows too, each over one key of the dummy block."""

    def __init__(self, pool: KVPool, width: int, step: StagedStep, upload: Upload) -> None:
        """
        Args:
            width: blocks of the longest sequence.
        """
        self._pool = pool
        self._width = width
        # The same for every step, so that a row's result does not depend on the longest sequence beside it, and so that
        # a captured launch is right for all lengths.
        self._longest_key = width * PAGE
        self._tokens = len(step.slots)
        self._slots = upload(step.slots)
        decode = [row for row in step.rows if row.count == 1]
        prefill = [row for row in step.rows if row.count > 1]
        padding = 0 if prefill else self._tokens - len(decode)
        self._calls = [
            self._call(rows, extra, upload) for rows, extra in ((decode, padding), (prefill, 0)) if rows or extra
        ]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: LayerOptions) -> Tensor:
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        keys.index_copy_(0, self._slots, key)
        values.index_copy_(0, self._slots, value)
        first = self._calls[0]
        if first.tokens.stop == self._tokens and first.tokens.start == 0:
            return self._run(first, query.contiguous(), keys, values, options)
        output = query.new_zeros(query.shape)
        for call in self._calls:
            output[call.tokens] = self._run(call, query[call.tokens].contiguous(), keys, values, options)
        return output

    def _run(self, call: _Call, query: Tensor, keys: Tensor, values: Tensor, options: LayerOptions) -> Tensor:
        window = _window(options, call)
        if call.blocks is None:
            output, logsumexp = attend_extents(
                query,
                keys,
                values,
                call.query_starts,
                call.key_starts,
                call.longest_query,
                self._longest_key,
                call.lengths,
                options.scale,
                window,
            )
        else:
            _, heads, width = keys.shape
            output, logsumexp = varlen.varlen_attn(
                query,
                keys.view(-1, PAGE, heads, width),
                values.view(-1, PAGE, heads, width),
                call.query_starts,
                call.key_starts,
                call.longest_query,
                self._longest_key,
                return_aux=varlen.AuxRequest(lse=True),
                scale=options.scale,
                window_size=window,
                enable_gqa=query.shape[1] != heads,
                seqused_k=call.lengths,
                block_table=call.blocks,
                # One split is right over pages, and makes a row's result independent of the other rows.
                num_splits=1,
            )
        if options.sinks is None:
            return output
        # `[heads, tokens]` out of the kernel, whatever varlen_attn's documentation says.
        return with_sinks(output, logsumexp.t(), options.sinks)

    def _call(self, rows: list[StagedRow], padding: int, upload: Upload) -> _Call:
        counts = [row.count for row in rows] + [1] * padding
        lengths = np.array([row.length for row in rows] + [1] * padding, dtype=np.int32)
        first = rows[0].first if rows else 0
        if KNOWS_PAGES:
            starts, blocks = _starts(lengths), upload(self._table(rows, len(counts)))
        else:
            # The end of the last one is never read, as each has its length.
            extents = [row.sequence.blocks[0] * PAGE for row in rows]
            starts, blocks = np.array(extents + [0] * (padding + 1), dtype=np.int32), None
        return _Call(
            slice(first, first + sum(counts)),
            upload(_starts(counts)),
            upload(starts),
            upload(lengths),
            blocks,
            max(counts),
        )

    def _table(self, rows: list[StagedRow], count: int) -> npt.NDArray[np.int32]:
        table = np.zeros((count, self._width), dtype=np.int32)
        for index, row in enumerate(rows):
            used = -(-row.length // PAGE)
            table[index, :used] = row.sequence.blocks[:used]
        return table


def attend_extents(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    longest_query: int,
    longest_key: int,
    lengths: Tensor,
    scale: float,
    window: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """The operator beneath `varlen_attn`, which has taken lengths for longer than the function has.

    Args:
        keys: `[slots, kv_heads, width]`, the whole pool.
        window: must be closed on the right: otherwise a single query is computed in splits, differently in every batch.

    Returns:
        `[tokens, heads, width]`, and the log-sum-exp `[heads, tokens]`.
    """
    output, logsumexp, *_ = torch.ops.aten._flash_attention_forward(
        query,
        keys,
        values,
        query_starts,
        key_starts,
        longest_query,
        longest_key,
        0.0,  # dropout
        window == (-1, 0),
        False,  # no mask for debugging
        scale=scale,
        window_size_left=window[0],
        window_size_right=window[1],
        seqused_k=lengths,
    )
    return output, logsumexp


def _starts(counts: npt.ArrayLike) -> npt.NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _window(options: LayerOptions, call: _Call) -> tuple[int, int]:
    """The kernel's (left, right) window, counted without the token itself; -1 is no limit."""
    if options.window is not None:
        return (options.window - 1, 0)
    if call.longest_query > 1 or options.sinks is not None or call.blocks is None:
        return (-1, 0)
    # A single query sees all keys anyhow, and only without any window does the kernel read the keys once for all heads
    # that share them (which leaves the log-sum-exp in another order, so not where sinks need it).
    return (-1, -1)
