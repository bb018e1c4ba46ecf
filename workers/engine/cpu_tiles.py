"""The innermost part of products of few rows: a few rows times a few blocks of a weight, with all sums in registers.

A product of few rows reads its weight once and computes little with it, and a core that reads one stream of memory waits
for most of it. Here a weight `[out, in]` lies in blocks of few outputs, step by step of 4 bytes of input: one number in
float32, or four bytes. A tile reads several blocks at once, far from each other: the fewer its rows, the more blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from workers.engine.cpu_compile import TARGET, inlined, intrinsic

# What Numba compiles for, which its variables may limit; code that it keeps on disk is told apart by the same.
FEATURES = frozenset(name[1:] for name in TARGET[2].split(",") if name.startswith("+"))
_WIDE_REGISTERS = "avx512f" in FEATURES
LANES = 16 if _WIDE_REGISTERS else 8
"""Outputs of a block: its sums fill one register."""
STEP_BYTES = 4
SUMS = 16 if _WIDE_REGISTERS else 8
"""Registers that hold sums: half of them, as all that is multiplied has to find room beside."""
_AHEAD = 2048
"""Bytes. What lies so far ahead is asked for: with few streams the processor itself asks for too little."""

_word, _single, _wide = ir.IntType(32), ir.FloatType(), ir.IntType(64)
_Operation = Callable[[Any, Any, Any, Any], Any]


def _multiply_add(builder: Any, total: Any, given: Any, weight: Any) -> Any:
    """`total + given * weight`, rounded once."""
    vector = ir.VectorType(_single, LANES)
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{LANES}f32"
    )
    return builder.call(function, [given, weight, total])


def _dot_bytes(builder: Any, total: Any, given: Any, weight: Any) -> Any:
    """`total` and the sum of four products of unsigned with signed bytes; AVX-512 VNNI."""
    vector = ir.VectorType(_word, LANES)
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, [vector] * 3), "llvm.x86.avx512.vpdpbusd.512"
    )
    return builder.call(function, [total, given, weight])


def _tile(rows: int, number: ir.Type, operation: _Operation) -> Any:
    """A function that multiplies `rows` rows with `SUMS / rows` blocks. See `generate` for its arguments."""
    streams = SUMS // rows
    vector = ir.VectorType(number, LANES)
    zero = ir.Constant(vector, [0] * LANES)
    nothing = ir.Constant(vector, ir.Undefined)

    @intrinsic
    def tile(_: Any, sums: Any, weights: Any, far: Any, last: Any, given: Any, size: Any, most: Any, steps: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            """Writes sums `[streams, rows, LANES]` to an address.

            The blocks begin at `weights` and then `far` bytes apart, but none behind `last`; the rows at `given` and then
            `size` bytes apart, of which there are `most` behind the first. What is left over repeats the last.
            """
            sums, weights, far, last, given, size, most, steps = arguments
            prefetch = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), _word, _word, _word]),
                "llvm.prefetch.p0",
            )
            totals = []
            for _ in range(streams * rows):
                totals.append(cgutils.alloca_once(builder, vector))
                builder.store(zero, totals[-1])

            def least(one: Any, other: Any) -> Any:
                return builder.select(builder.icmp_signed("<", one, other), one, other)

            def load(address: Any, offset: Any, kind: ir.Type) -> Any:
                return builder.load(builder.inttoptr(builder.add(address, offset), kind.as_pointer()), align=1)

            blocks = [least(builder.add(weights, builder.mul(far, _wide(s))), last) for s in range(streams)]
            inputs = [builder.add(given, builder.mul(size, least(_wide(r), most))) for r in range(rows)]
            with cgutils.for_range(builder, steps) as loop:
                offset = builder.mul(loop.index, _wide(STEP_BYTES))
                spread = []
                for row in inputs:
                    first = builder.insert_element(nothing, load(row, offset, number), _word(0))
                    spread.append(
                        builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_word, LANES), [0] * LANES))
                    )
                offset = builder.mul(loop.index, _wide(STEP_BYTES * LANES))
                for s, block in enumerate(blocks):
                    weight = load(block, offset, vector)
                    place = builder.inttoptr(
                        builder.add(builder.add(block, offset), _wide(_AHEAD)), ir.IntType(8).as_pointer()
                    )
                    builder.call(prefetch, [place, _word(0), _word(3), _word(1)])
                    for r, value in enumerate(spread):
                        total = totals[s * rows + r]
                        builder.store(operation(builder, builder.load(total), value, weight), total)
            for i, total in enumerate(totals):
                place = builder.inttoptr(builder.add(sums, _wide(i * LANES * 4)), vector.as_pointer())
                builder.store(builder.load(total), place, align=1)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 8), generate

    return tile


@inlined
def streams_of(rows: int) -> int:
    """Blocks that a tile of a product of so many rows takes; it takes `SUMS // streams_of(rows)` rows."""
    return SUMS // (2 if rows <= 2 else 4 if rows <= 4 else 8)


def _tiles(number: ir.Type, operation: _Operation) -> Any:
    """`_tile` for so many streams as its first argument says."""
    two, four, eight = (_tile(rows, number, operation) for rows in (2, 4, 8))

    @inlined
    def tile(
        streams: int, sums: int, weights: int, far: int, last: int, given: int, size: int, most: int, steps: int
    ) -> None:
        if streams == SUMS // 2:
            two(sums, weights, far, last, given, size, most, steps)
        elif streams == SUMS // 4:
            four(sums, weights, far, last, given, size, most, steps)
        else:
            eight(sums, weights, far, last, given, size, most, steps)

    return tile


float_tile = _tiles(_single, _multiply_add)
byte_tile = _tiles(_word, _dot_bytes)
