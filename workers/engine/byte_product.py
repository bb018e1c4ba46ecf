"""Few rows of bytes times a weight of bytes, by the processor's dot products of four bytes (AVX-512 VNNI).

oneDNN's product spends longer on preparing itself than a product of few rows takes, and reads the weight as one stream of
memory (see `cpu_tiles`). Sums of integers have no order, so that either may compute a row.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import carray
from torch import Tensor

from workers.engine import cpu_threads
from workers.engine.cpu_tiles import FEATURES, LANES, STEP_BYTES, SUMS, byte_tile, streams_of

MOST_ROWS = 32
"""Of bytes. With more, oneDNN's product of blocks is faster."""


class ByteProduct:
    """`(x - zero_point) @ weight.T * scale` for few rows, with the memory of a second copy of the weight."""

    def __init__(self, weight: Tensor, scale: Tensor, zero_point: int) -> None:
        """
        Args:
            weight: int8 `[out, in]`, of inputs that `serves` knows.
            scale: of each output, float32 `[out]`.
            zero_point: of the rows.
        """
        outputs, inputs = weight.shape
        blocks, steps = -(-outputs // LANES), inputs // STEP_BYTES
        padded = torch.nn.functional.pad(weight, (0, 0, 0, blocks * LANES - outputs))
        ordered = padded.view(blocks, LANES, steps, STEP_BYTES).transpose(1, 2).contiguous()
        self._table: npt.NDArray[np.int8] = ordered.numpy()
        # What the zero point adds to each sum.
        self._excess = (padded.sum(dim=1, dtype=torch.int32) * zero_point).numpy()
        self._scale = torch.nn.functional.pad(scale, (0, blocks * LANES - outputs)).numpy()
        self._outputs = outputs
        self._body = _body()
        self._shape = np.array(
            [blocks, steps, outputs, *(array.ctypes.data for array in (self._table, self._excess, self._scale))],
            dtype=np.intp,
        )

    def __call__(self, rows: Tensor) -> Tensor:
        """Contiguous `[rows, in]` to `[rows, out]`."""
        out = torch.empty(len(rows), self._outputs)
        cpu_threads.run(self._body, self._shape, rows.data_ptr(), out.data_ptr(), len(rows), torch.get_num_threads())
        return out


def serves(inputs: int) -> bool:
    """Whether rows of so many inputs can be multiplied by this processor."""
    return inputs % STEP_BYTES == 0 and cpu_threads.AVAILABLE and {"avx512f", "avx512vnni"} <= FEATURES


def _part(arguments: Any) -> None:
    """A thread's share of the blocks."""
    blocks, steps, outputs, table = arguments[0], arguments[1], arguments[2], arguments[3]
    given, rows = arguments[6], arguments[8]
    excess = carray(cpu_threads.pointer(arguments[4], np.int32(0)), (blocks, LANES))
    scale = carray(cpu_threads.pointer(arguments[5], np.float32(0)), (blocks, LANES))
    out = carray(cpu_threads.pointer(arguments[7], np.float32(0)), (rows, outputs))
    number, count = cpu_threads.thread_number(), cpu_threads.thread_count()
    begin, end = blocks * number // count, blocks * (number + 1) // count
    streams = streams_of(rows)
    most = SUMS // streams
    apart = (end - begin + streams - 1) // streams
    sums = np.empty((streams, most, LANES), dtype=np.int32)
    size = steps * STEP_BYTES
    last = table + (end - 1) * size * LANES
    for first in range(begin, begin + apart):
        weights = table + first * size * LANES
        for row in range(0, rows, most):
            tile = min(most, rows - row)
            byte_tile(
                streams,
                sums.ctypes.data,
                weights,
                apart * size * LANES,
                last,
                given + row * size,
                size,
                tile - 1,
                steps,
            )
            for stream in range(streams):
                block = first + stream * apart
                if block >= end:
                    break
                for i in range(tile):
                    for lane in range(min(LANES, outputs - block * LANES)):
                        total = sums[stream, i, lane] - excess[block, lane]
                        out[row + i, block * LANES + lane] = np.float32(total) * scale[block, lane]


@functools.cache
def _body() -> int:
    return cpu_threads.thread_body(_part)
