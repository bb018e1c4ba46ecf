"""How much of a GPU's memory the cache takes."""

from __future__ import annotations

import pytest
import torch

from workers.engine.memory import CUDA_RESERVE, cuda_cache_bytes

GB = 10**9
DEVICE = torch.device("cuda")


@pytest.mark.parametrize(
    ("fraction", "free", "expected"),
    [
        (1.0, 70 * GB, 72 * GB - 5 * GB),  # all that is free or ours
        (0.5, 70 * GB, 40 * GB - 5 * GB),  # half of the whole GPU
        (0.5, 20 * GB, 22 * GB - 5 * GB),  # others have taken more than their half
        (0.05, 70 * GB, 4 * GB - 5 * GB),  # the weights alone are more
    ],
)
def test_the_fraction_is_of_the_whole_gpu_and_of_what_is_there(
    fraction: float, free: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 * GB)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5 * GB)
    assert cuda_cache_bytes(DEVICE, fraction) == expected - CUDA_RESERVE
