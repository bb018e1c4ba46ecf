"""Few rows times a weight in float32, read as fast as the memory gives it, with the bits of MKL's product of many rows.

MKL's packed weight is one stream of memory, and its product computes whole tiles of rows. `cpu_tiles` does better for few
of them. It adds in the order of MKL's product: to the bias the sums of blocks of inputs, one after the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import carray
from torch import Tensor

from workers.engine import cpu_threads
from workers.engine.cpu_tiles import LANES, STEP_BYTES, SUMS, float_tile, streams_of

Memory = Callable[[int], Tensor]

MOST_ROWS = 32
"""With more, MKL's product is faster."""
_BLOCK = 384
"""MKL adds up blocks of at most so many inputs, equally many in each, ..."""
_BLOCK_STEP = 4
"""... a multiple of this."""


class FewRows:
    """`x @ weight.T + bias` for few rows, with the memory of a second copy of the weight `[out, in]`; float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None, memory: Memory = torch.empty) -> None:
        """
        Args:
            memory: gives room for a number of float32.
        """
        self._outputs, inputs = weight.shape
        blocks = -(-self._outputs // LANES)
        padded = torch.nn.functional.pad(weight.detach(), (0, 0, 0, blocks * LANES - self._outputs))
        self._table = memory(padded.numel()).view(blocks, inputs, LANES)
        self._table.copy_(padded.view(blocks, LANES, inputs).transpose(1, 2))
        parts = -(-inputs // _BLOCK)
        size = -(-inputs // (parts * _BLOCK_STEP)) * _BLOCK_STEP
        self._bias = weight.new_zeros(self._outputs) if bias is None else bias.detach().contiguous()
        self._body = _body()
        self._shape = np.array(
            [self._table.data_ptr(), blocks, inputs, size, self._outputs, self._bias.data_ptr()], dtype=np.intp
        )

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., in]`, contiguous, to `[..., out]`."""
        out = torch.empty(*x.shape[:-1], self._outputs)
        rows = x.numel() // x.shape[-1]
        cpu_threads.run(self._body, self._shape, x.data_ptr(), out.data_ptr(), rows, torch.get_num_threads())
        return out


class Arena:
    """Hands out a large array in parts: what needs less than a large page shares one."""

    def __init__(self, array: Tensor) -> None:
        self._array = array
        self._taken = 0

    def __call__(self, count: int) -> Tensor:
        """`[count]`; of its own memory when the array is used up."""
        first, self._taken = self._taken, self._taken + count
        return self._array[first : self._taken] if self._taken <= len(self._array) else torch.empty(count)


def _part(arguments: Any) -> None:
    """A thread's share of the blocks."""
    table, x, rows = arguments[0], arguments[6], arguments[8]
    blocks, inputs, part, outputs = arguments[1], arguments[2], arguments[3], arguments[4]
    bias = carray(cpu_threads.pointer(arguments[5], np.float32(0)), (outputs,))
    out = carray(cpu_threads.pointer(arguments[7], np.float32(0)), (rows, outputs))
    number, count = cpu_threads.thread_number(), cpu_threads.thread_count()
    begin, end = blocks * number // count, blocks * (number + 1) // count
    streams = streams_of(rows)
    most = SUMS // streams
    apart = (end - begin + streams - 1) // streams
    sums = np.empty((streams, most, LANES), dtype=np.float32)
    size, step = inputs * STEP_BYTES, LANES * STEP_BYTES
    for first in range(begin, begin + apart):
        for done in range(0, inputs, part):
            steps = min(part, inputs - done)
            weights, last = table + (first * inputs + done) * step, table + ((end - 1) * inputs + done) * step
            for row in range(0, rows, most):
                tile = min(most, rows - row)
                given = x + row * size + done * STEP_BYTES
                float_tile(
                    streams, sums.ctypes.data, weights, apart * inputs * step, last, given, size, tile - 1, steps
                )
                for stream in range(streams):
                    place = (first + stream * apart) * LANES
                    if first + stream * apart >= end:
                        break
                    for i in range(tile):
                        for lane in range(min(LANES, outputs - place)):
                            before = out[row + i, place + lane] if done else bias[place + lane]
                            out[row + i, place + lane] = before + sums[stream, i, lane]


@functools.cache
def _body() -> int:
    return cpu_threads.thread_body(_part)
