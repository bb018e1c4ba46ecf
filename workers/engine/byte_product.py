"""Few rows of bytes times a weight of bytes, by the processor's dot products of four bytes (AVX-512 VNNI).

oneDNN's product spends longer on preparing itself than a product of few rows takes, and reads the weight as one stream of
memory (see `single_row`). Sums of integers have no order, so that either may compute a row.
"""

from __future__ import annotations

import functools
from typing import Any

import llvmlite.binding
import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from workers.engine import cpu_threads
from workers.engine.cpu_kernels import compiled

_LANES = 16
"""Outputs of one instruction: its sums are 32 bits wide."""
_BYTES = 4
"""Inputs of one instruction and output."""
MOST_ROWS = 16
"""Of bytes. With more, oneDNN's product of blocks is faster."""

# How many rows are multiplied at once, over how many streams: 16 sums and what is multiplied fill the registers.
_TILES = {2: 8, 4: 4, 8: 2}


class ByteProduct:
    """`(x - zero_point) @ weight.T * scale` for uint8 rows and int8 weights `[out, in]`, both padded to whole instructions."""

    def __init__(self, weight: Tensor, scale: Tensor, zero_point: int) -> None:
        """
        Args:
            weight: int8 `[out, in]`.
            scale: of each output, float32 `[out]`.
            zero_point: of the rows.
        """
        outputs, inputs = weight.shape
        blocks, steps = -(-outputs // _LANES), -(-inputs // _BYTES)
        padded = torch.nn.functional.pad(weight, (0, steps * _BYTES - inputs, 0, blocks * _LANES - outputs))
        ordered = padded.view(blocks, _LANES, steps, _BYTES).transpose(1, 2).contiguous()
        self._table: npt.NDArray[np.int8] = ordered.numpy()
        # What the zero point adds to each sum.
        self._excess = (padded.sum(dim=1, dtype=torch.int32) * zero_point).numpy()
        self._scale = torch.nn.functional.pad(scale, (0, blocks * _LANES - outputs)).numpy()
        self._outputs = outputs
        self._shape = np.array(
            [blocks, steps, outputs, *(array.ctypes.data for array in (self._table, self._excess, self._scale))],
            dtype=np.intp,
        )

    def __call__(self, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """`[rows, in]` to `[rows, out]`; contiguous, `in` a multiple of four."""
        out = np.empty((len(rows), self._outputs), dtype=np.float32)
        _run(_body(), self._shape, rows, out, torch.get_num_threads())
        return out


def serves(inputs: int) -> bool:
    """Whether rows of so many inputs can be multiplied here."""
    return inputs % _BYTES == 0 and cpu_threads.AVAILABLE and _has_instruction()


@functools.cache
def _has_instruction() -> bool:
    features = llvmlite.binding.get_host_cpu_features()
    return all(features.get(name, False) for name in ("avx512f", "avx512vnni"))


@compiled
def _run(body: int, shape: Any, rows: Any, out: Any, threads: int) -> None:
    arguments = np.empty(9, dtype=np.intp)
    arguments[:6] = shape
    arguments[6] = rows.ctypes.data
    arguments[7] = out.ctypes.data
    arguments[8] = len(rows)
    cpu_threads.parallel(body, arguments.ctypes.data, threads, 0)


def _part(arguments: Any) -> None:
    """A thread's share of the blocks of outputs."""
    blocks, steps, outputs, rows = arguments[0], arguments[1], arguments[2], arguments[8]
    excess = carray(cpu_threads.pointer(arguments[4], np.int32(0)), (blocks, _LANES))
    scale = carray(cpu_threads.pointer(arguments[5], np.float32(0)), (blocks, _LANES))
    out = carray(cpu_threads.pointer(arguments[7], np.float32(0)), (rows, outputs))
    number, count = cpu_threads.thread_number(), cpu_threads.thread_count()
    begin, end = blocks * number // count, blocks * (number + 1) // count
    streams = 8 if rows <= 2 else 4 if rows <= 4 else 2
    apart = (end - begin + streams - 1) // streams
    sums = np.empty((16, _LANES), dtype=np.int32)
    size = steps * _BYTES
    for first in range(begin, begin + apart):
        row = 0
        while row < rows:
            # The last stream may be shorter, and the last tile: both then compute something twice.
            tile = min(16 // streams, rows - row)
            weights = arguments[3] + first * size * _LANES
            given = arguments[6] + row * size
            far = apart * size * _LANES
            last = arguments[3] + (end - 1) * size * _LANES
            if streams == 8:
                _dot_2(sums.ctypes.data, weights, far, last, given, size, tile - 1, steps)
            elif streams == 4:
                _dot_4(sums.ctypes.data, weights, far, last, given, size, tile - 1, steps)
            else:
                _dot_8(sums.ctypes.data, weights, far, last, given, size, tile - 1, steps)
            for stream in range(streams):
                block = first + stream * apart
                if block < end:
                    lanes = min(_LANES, outputs - block * _LANES)
                    for i in range(tile):
                        total, to = sums[stream * (16 // streams) + i], out[row + i]
                        for lane in range(lanes):
                            to[block * _LANES + lane] = np.float32(total[lane] - excess[block, lane]) * scale[block, lane]
            row += tile


def _dots(rows: int) -> Any:
    """A function that multiplies so many rows with one block of each stream. See `generate` for its arguments."""
    streams = _TILES[rows]

    @intrinsic  # type: ignore[misc]
    def dots(_context: Any, sums: Any, weights: Any, far: Any, last: Any, given: Any, size: Any, most: Any, steps: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            """Sums `[streams, rows, lanes]` of weights from an address on, streams `far` bytes apart, none of which begins
            behind `last`, and rows `size` bytes apart, of which there are `most` behind the first."""
            sums, weights, far, last, given, size, most, steps = arguments
            word, byte = ir.IntType(32), ir.IntType(8)
            vector = ir.VectorType(word, _LANES)
            dot = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector] * 3), "llvm.x86.avx512.vpdpbusd.512"
            )
            zero = ir.Constant(vector, [0] * _LANES)
            totals = [cgutils.alloca_once_value(builder, zero) for _ in range(streams * rows)]
            for total in totals:
                builder.store(zero, total)

            def least(one: Any, other: Any) -> Any:
                return builder.select(builder.icmp_signed("<", one, other), one, other)

            def at(address: Any, type_: Any) -> Any:
                return builder.inttoptr(address, type_.as_pointer())

            number = ir.IntType(64)
            blocks = [least(builder.add(weights, builder.mul(far, number(s))), last) for s in range(streams)]
            inputs = [builder.add(given, builder.mul(size, least(number(r), most))) for r in range(rows)]
            with cgutils.for_range(builder, steps) as loop:
                words = []
                for address in inputs:
                    four = builder.load(at(builder.add(address, builder.mul(loop.index, number(_BYTES))), word), align=1)
                    single = builder.insert_element(ir.Constant(vector, ir.Undefined), four, word(0))
                    words.append(builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), zero))
                for s, address in enumerate(blocks):
                    place = builder.add(address, builder.mul(loop.index, number(_BYTES * _LANES)))
                    weight = builder.load(at(place, vector), align=1)
                    for r, four in enumerate(words):
                        total = totals[s * rows + r]
                        builder.store(builder.call(dot, [builder.load(total), four, weight]), total)
            for i, total in enumerate(totals):
                place = builder.add(sums, number(i * _LANES * 4))
                builder.store(builder.load(total), at(place, vector), align=1)
            return context.get_dummy_value()

        integers = [types.intp] * 8
        return types.void(*integers), generate

    return dots


_dot_2, _dot_4, _dot_8 = _dots(2), _dots(4), _dots(8)


@functools.cache
def _body() -> int:
    return cpu_threads.thread_body(_part)
