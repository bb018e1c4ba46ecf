"""What needs more of a processor than every one has: skipped where it is missing, and never where it is known to be there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from workers.engine import cpu_threads
from workers.engine.linear import MklLinear
from workers.engine.quantize import int8_obstacle


def _has(instructions: str, limit: str, *, vendor: str = "") -> bool:
    """Whether the processor says so, and no variable tells the library to do without."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return f" {instructions} " in told and vendor in told and limit not in os.environ


def _few_rows_serve() -> bool:
    weight = torch.linspace(-1, 1, 200 * 1000).sin().view(200, 1000)
    layer = MklLinear(weight, None)
    layer.keep_for_few_rows(weight)
    return layer.copied


needs_few_rows = pytest.mark.skipif(
    not (
        cpu_threads.AVAILABLE
        and (_has("avx512f", "MKL_ENABLE_INSTRUCTIONS", vendor="GenuineIntel") or _few_rows_serve())
    ),
    reason="MKL adds in another order on this processor (without AVX-512), or torch has no OpenMP library here",
)
needs_int8 = pytest.mark.skipif(
    not _has("avx512_vnni", "ONEDNN_MAX_CPU_ISA") and int8_obstacle() is not None,
    reason="this processor's product of int8 matrices is not exact (it has no VNNI)",
)
