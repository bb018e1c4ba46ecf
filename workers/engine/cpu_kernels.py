"""What a decoder layer computes between its products, on CPU: each kernel one pass over memory, compiled by Numba.

A step of few rows spends more time on calling torch's small operations than on computing them, and each of them reads and
writes its rows once more. Rows are computed one by one by the same instructions, so a row has the same bits in any company.

All arrays are float32 and contiguous if nothing else is said: for other strides Numba compiles another kernel, with other
bits. Kernels do not check shapes, and would read beyond arrays that are too small: whoever calls them knows that they fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from workers.engine.cpu_compile import compiled, inlined, intrinsic

Array = npt.NDArray[np.float32]
_f = np.float32
_i = np.int32


@intrinsic
def _as_float(_context: Any, bits: Any) -> Any:
    """A float32 by its bits."""

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def _as_bits(_context: Any, number: Any) -> Any:
    """The bits of a float32."""

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@compiled
def rms_norm(x: Array, weight: Array, epsilon: np.float32, out: Array) -> None:
    """`out = x / sqrt(mean(x * x) + epsilon) * weight`, over rows `[rows, width]`."""
    width = x.shape[1]
    for row in range(x.shape[0]):
        given, to = x[row], out[row]
        total = _f(0)
        for i in range(width):
            total += given[i] * given[i]
        factor = _f(1) / np.sqrt(total / _f(width) + epsilon)
        for i in range(width):
            to[i] = given[i] * factor * weight[i]


@compiled
def add_rms_norm(x: Array, more: Array, weight: Array, epsilon: np.float32, out: Array) -> None:
    """`x += more` and then `rms_norm(x, weight, epsilon, out)`."""
    width = x.shape[1]
    for row in range(x.shape[0]):
        sums, added, to = x[row], more[row], out[row]
        total = _f(0)
        for i in range(width):
            value = sums[i] + added[i]
            sums[i] = value
            total += value * value
        factor = _f(1) / np.sqrt(total / _f(width) + epsilon)
        for i in range(width):
            to[i] = sums[i] * factor * weight[i]


@compiled
def rotate(x: Array, cosine: Array, sine: Array, heads: int) -> None:
    """Rotary embedding of the first heads of rows `[rows, all heads, width]`, in place.

    Args:
        cosine: `[rows, width]`; so is `sine`.
    """
    half = cosine.shape[1] // 2
    for row in range(x.shape[0]):
        for head in range(heads):
            for i in range(half):
                first, second = x[row, head, i], x[row, head, half + i]
                x[row, head, i] = first * cosine[row, i] - second * sine[row, i]
                x[row, head, half + i] = second * cosine[row, half + i] + first * sine[row, half + i]


@compiled
def silu_product(gate_up: Array, out: Array) -> None:
    """`out = silu(gate) * up` with the two side by side in rows `[rows, 2 * width]`."""
    width = out.shape[1]
    for row in range(out.shape[0]):
        gate, up, to = gate_up[row, :width], gate_up[row, width:], out[row]
        for i in range(width):
            to[i] = gate[i] / (_f(1) + _exp(-gate[i])) * up[i]


@inlined
def _exp(x: Any) -> Any:
    """Within two units in the last place; a polynomial, as calls of a library are not vectorized. Infinite above 88.4."""
    x = x if not x < _f(-87) else _f(-87)
    # The power of two of 89 is the one that has infinity's bits.
    x = x if not x > _f(89) else _f(89)
    power = np.floor(x * _f(1.4426950408889634) + _f(0.5))
    # ln 2 in two parts, of which the first has few digits: x is reduced without rounding.
    rest = x - power * _f(0.693359375)
    rest = rest + power * _f(2.12194440e-4)
    value = _f(1.9875691500e-4)
    value = value * rest + _f(1.3981999507e-3)
    value = value * rest + _f(8.3334519073e-3)
    value = value * rest + _f(4.1665795894e-2)
    value = value * rest + _f(1.6666665459e-1)
    value = value * rest + _f(5.0000001201e-1)
    value = value * rest * rest + rest + _f(1)
    return value * _as_float((_i(power) + _i(127)) << _i(23))


@compiled
def quantize_rows(
    x: Array, offset: np.float32, high: npt.NDArray[np.uint8], low: npt.NDArray[np.uint8], scale: Array
) -> None:
    """Rows `[rows, width]` as two digits each and a scale `[rows]` (see `quantize`)."""
    width = x.shape[1]
    for row in range(x.shape[0]):
        given, firsts, seconds = x[row], high[row], low[row]
        # Numbers without a sign are ordered as their bits are, and NaN comes last, so that it becomes the scale.
        most = _i(0)
        for i in range(width):
            most = max(most, _as_bits(given[i]) & _i(0x7FFFFFFF))
        size = _as_float(most) * _f(1 / 127) + _f(1e-30)
        scale[row] = size
        for i in range(width):
            value = given[i] / size + offset
            digit = _i(value)
            firsts[i] = np.uint8(digit)
            seconds[i] = np.uint8(_i((value - _f(digit)) * _f(256)))


@compiled
def join_digits(products: Array, scale: Array) -> None:
    """The products of high and low digits `[2, rows, width]` as one, in place in the first: `(high + low / 256) * scale`."""
    width = products.shape[2]
    for row in range(products.shape[1]):
        high, low = products[0, row], products[1, row]
        for i in range(width):
            high[i] = (high[i] + low[i] * _f(1 / 256)) * scale[row]
