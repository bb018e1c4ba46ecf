"""How long a run still takes, as far as that can be told."""

from __future__ import annotations

import pytest

from ops.bench.serve.view import time_left


@pytest.mark.parametrize(
    ("done", "expected", "passed", "seconds", "left"),
    [
        (0, 100, 5.0, None, None),
        (25, 100, 5.0, None, 15.0),
        (0, None, 5.0, 20.0, 15.0),
        (3, None, 21.0, 20.0, 0.0),
        (0, 100, 5.0, 20.0, 15.0),
        (50, 100, 5.0, 20.0, 5.0),
    ],
)
def test_time_left(
    *, done: int, expected: int | None, passed: float, seconds: float | None, left: float | None
) -> None:
    assert time_left(done, expected, passed, seconds) == left
