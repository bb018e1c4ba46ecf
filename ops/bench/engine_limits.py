"""What this machine can do at best: the yardsticks of the engine's bench, measured in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from workers.engine.memory import large_pages

ROUNDS = 5
_BEYOND_CACHES = 1 << 30
"""Bytes; more than any cache holds."""
_COLUMNS = 4096
_GEMM = 2048


class Limits(Struct, frozen=True):
    """Of the process's number of threads."""

    read_bytes_per_second: float
    """The fastest of several ways to read everything once, as decoding one sequence does with the weights: over as much as
    the model's weights take, part of which a large cache may hold, and over more than any cache holds."""
    copy_bytes_per_second: float
    """Read plus written."""
    float_per_second: float
    """Operations of a large float32 product; a multiplication and an addition are two."""
    int8_per_second: float
    """The same in 8 bits (0 where there is no such product)."""

    def or_better(self, other: Limits) -> Limits:
        """Of two tries the better one of each."""
        return Limits(*map(max, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


def clock() -> Callable[[], float]:
    """What the bench measures with: on one thread the processor's time, because on a machine that others use too the
    wall clock would measure them; on several the wall clock."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


@torch.inference_mode()
def measure(weight_bytes: int) -> Limits:
    """The best of `ROUNDS` of each; takes about four seconds.

    Args:
        weight_bytes: what a step of the model reads.
    """
    # In large pages, as the weights lie.
    source = large_pages(_BEYOND_CACHES // 4).view(-1, _COLUMNS)
    source.uniform_()
    target = torch.empty_like(source[: len(source) // 2])
    a, b = torch.rand(_GEMM, _GEMM), torch.rand(_GEMM, _GEMM)
    copied = 2 * target.numel() * target.itemsize
    operations = 2 * _GEMM**3
    rows = min(max(weight_bytes // (4 * _COLUMNS), 1), len(source))
    return Limits(
        read_bytes_per_second=max(_read(source), _read(source[:rows])),
        copy_bytes_per_second=copied / _best(lambda: target.copy_(source[: len(target)])),
        float_per_second=operations / _best(lambda: a @ b),
        int8_per_second=_int8(operations),
    )


def _read(source: Tensor) -> float:
    """Bytes per second."""
    vector, half = torch.rand(_COLUMNS), len(source) // 2
    first, second = (part.reshape(-1) for part in (source[:half], source[half : 2 * half]))
    size = source.numel() * source.itemsize
    product = size / _best(lambda: torch.mv(source, vector))
    return (
        max(product, 2 * first.numel() * first.itemsize / _best(lambda: torch.dot(first, second))) if half else product
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
    now = clock()
    work()
    times = []
    for _ in range(ROUNDS):
        started = now()
        work()
        times.append(now() - started)
    return min(times)
