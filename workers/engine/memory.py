"""How much memory the key/value cache may take, and memory in large pages for what every step reads."""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

import torch
from torch import Tensor

CPU_SHARE = 0.25
"""Part of the available memory that the cache takes on CPU by default. Only pages in use become real."""
SECOND_COPY_SHARE = 0.125
"""Part of the available memory that second copies of weights may take on CPU (see `few_rows` and `byte_product`)."""
CUDA_RESERVE = 256 << 20
"""Bytes left free on the GPU for what was not measured."""


def cpu_cache_bytes(workers: int) -> int:
    """Default size of one worker's cache on CPU."""
    return int(available_memory() * CPU_SHARE / workers)


def second_copy_bytes(workers: int) -> int:
    """How much one worker may spend on second copies of weights on CPU."""
    return int(available_memory() * SECOND_COPY_SHARE / workers)


def available_memory() -> int:
    """Bytes a process here can still take: the machine's, or its container's when that is less."""
    available = _machine_available()
    limit, used = (_cgroup_bytes(name) for name in ("memory.max", "memory.current"))
    if limit is not None and used is not None:
        available = min(available, max(limit - used, 0))
    return available


def _machine_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _cgroup_bytes(name: str) -> int | None:
    """A figure of control groups version 2; None without a limit."""
    try:
        return int(Path("/sys/fs/cgroup", name).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def cuda_cache_bytes(device: torch.device, fraction: float) -> int:
    """What is left for the cache on a GPU once the weights are loaded and a largest step has run.

    Args:
        fraction: share of the whole GPU's memory this process may take.
    """
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    peak = torch.cuda.max_memory_allocated(device)
    allowed = min(int(total * fraction), free + reserved)
    return allowed - peak - CUDA_RESERVE


def large_pages(count: int) -> Tensor:
    """`[count]` zeros in float32, in pages of 2 MiB where Linux grants them, which can be read faster."""
    memory = mmap.mmap(-1, max(count, 1) * torch.float32.itemsize)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # The kernel may have none.
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32)[:count]
