"""What this machine can do at best: the yardsticks of the engine's bench, measured in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from msgspec import Struct

ROUNDS = 7
_MATRIX = (8192, 8192)
"""256 MiB in float32: more than any cache holds."""
_GEMM = 2048


class Limits(Struct, frozen=True):
    """Of the process's number of threads."""

    read_bytes_per_second: float
    """A matrix times a vector: every weight read once, as decoding one sequence does."""
    copy_bytes_per_second: float
    """Read plus written."""
    float_per_second: float
    """Operations of a large float32 product; a multiplication and an addition are two."""
    int8_per_second: float
    """The same in 8 bits (0 where there is no such product)."""


@torch.inference_mode()
def measure() -> Limits:
    """The best of `ROUNDS` of each; takes about three seconds."""
    matrix, vector = torch.rand(_MATRIX), torch.rand(_MATRIX[1])
    target = torch.empty_like(matrix)
    a, b = torch.rand(_GEMM, _GEMM), torch.rand(_GEMM, _GEMM)
    size = matrix.numel() * matrix.itemsize
    operations = 2 * _GEMM**3
    return Limits(
        read_bytes_per_second=size / _best(lambda: torch.mv(matrix, vector)),
        copy_bytes_per_second=2 * size / _best(lambda: target.copy_(matrix)),
        float_per_second=operations / _best(lambda: a @ b),
        int8_per_second=_int8(operations),
    )


def _int8(operations: int) -> float:
    values = torch.randint(0, 255, (_GEMM, _GEMM), dtype=torch.uint8)
    weight = torch.randint(-127, 127, (_GEMM, _GEMM), dtype=torch.int8)
    ones, zeros = torch.ones(_GEMM), torch.zeros(_GEMM, dtype=torch.long)
    try:
        packed = torch.ops.onednn.qlinear_prepack(weight, None)
        multiply = torch.ops.onednn.qlinear_pointwise
        return operations / _best(
            lambda: multiply(values, 1.0, 128, packed, ones, zeros, None, 1.0, 0, torch.float32, "none", [], "")
        )
    except (RuntimeError, AttributeError):
        return 0.0


def _best(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
