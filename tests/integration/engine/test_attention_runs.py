"""Tokens that one strided view can show the keys of are computed together, and no others."""

from __future__ import annotations

import random

import pytest

from workers.engine.attention_cpu import _equal_steps


@pytest.mark.parametrize(
    ("bases", "lengths", "runs"),
    [
        ([], [], []),
        ([64], [128], [(0, 1, 0, 128)]),
        ([64, 64, 64], [64, 64, 64], [(0, 3, 0, 64)]),  # a chunk
        ([64, 64, 64], [64, 128, 128], [(0, 1, 0, 64), (1, 2, 0, 128)]),  # a chunk that enters its second span
        ([64, 256, 448, 512], [64] * 4, [(0, 3, 192, 64), (3, 1, 0, 64)]),  # equal extents, then another
        ([256, 64], [64, 64], [(0, 1, 0, 64), (1, 1, 0, 64)]),  # views have no negative strides
    ],
)
def test_runs(bases: list[int], lengths: list[int], runs: list[tuple[int, int, int, int]]) -> None:
    assert _equal_steps(bases, lengths) == runs


def test_runs_cover_every_token_once_with_its_own_keys() -> None:
    random.seed(3)
    for _ in range(300):
        count = random.randrange(1, 30)
        bases = [64 * random.randrange(5) for _ in range(count)]
        lengths = [64 * random.randrange(1, 3) for _ in range(count)]
        shown = [
            (first + i, base_of_run + i * step, length)
            for first, size, step, length in _equal_steps(bases, lengths)
            for base_of_run in [bases[first]]
            for i in range(size)
        ]
        assert shown == list(zip(range(count), bases, lengths, strict=True))
