"""One copy holds what a step needs; the same layout has the same addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from workers.engine.device_runner import stage_bytes
from workers.engine.staging import Stage


def _arrays(seed: int) -> list[npt.NDArray[Any]]:
    generator = np.random.default_rng(seed)
    return [
        generator.integers(0, 100, 3),
        generator.integers(0, 100, (2, 5)).astype(np.int32).T,
        generator.random(7).astype(np.float32),
        generator.random(2),
        np.array([True, False, True]),
        np.empty(0, dtype=np.int64),
        generator.integers(0, 100, 1),
    ]


def test_arrays_arrive_as_they_are_once_sent() -> None:
    stage = Stage(torch.device("cpu"), 1024)
    addresses = []
    for seed in range(3):
        stage.begin()
        arrays = _arrays(seed)
        views = [stage.add(array) for array in arrays]
        stage.send()
        for view, array in zip(views, arrays, strict=True):
            assert np.array_equal(view.numpy(), array)
            assert view.numpy().dtype == array.dtype
        addresses.append([view.data_ptr() for view in views])
    assert addresses[0] == addresses[1] == addresses[2]
    assert all(address % 16 == addresses[0][0] % 16 for address in addresses[0])


def test_nothing_arrives_before_it_is_sent() -> None:
    stage = Stage(torch.device("cpu"), 64)
    stage.begin()
    view = stage.add(np.array([1, 2]))
    stage.send()
    stage.begin()
    stage.add(np.array([3, 4]))
    assert view.tolist() == [1, 2]
    stage.send()
    assert view.tolist() == [3, 4]


def test_what_does_not_fit_goes_by_itself() -> None:
    stage = Stage(torch.device("cpu"), 32)
    stage.begin()
    large, small = stage.add(np.arange(100)), stage.add(np.arange(4))
    stage.send()
    assert large.tolist() == list(range(100))
    assert small.tolist() == [0, 1, 2, 3]


def test_a_stage_holds_the_largest_step() -> None:
    rows, tokens, width = 256, 4352, 512
    needed = [np.zeros(tokens, dtype=np.int64)] * 5 + [np.zeros((rows, width), dtype=np.int32)]
    needed += [np.zeros(rows, dtype=np.int64)] * 8
    stage = Stage(torch.device("cpu"), stage_bytes(tokens, rows, width))
    stage.begin()
    first = stage.add(needed[0]).data_ptr()
    last = [stage.add(array).data_ptr() for array in needed[1:]][-1]
    assert first < last < first + stage_bytes(tokens, rows, width)
