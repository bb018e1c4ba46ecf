"""How far a model has been fetched and loaded, in words."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Told the stage of a load, with how much of it behind a colon (`loading the weights: 3 of 290 tensors`), and how much of the
whole load is done, 0 to 1."""


def shown_bytes(done: int, total: int) -> str:
    """`1.2 of 4.9 GB`; both in the unit that suits the total."""
    unit, size = next(((unit, size) for unit, size in (("GB", 1e9), ("MB", 1e6)) if total >= size), ("kB", 1e3))
    return f"{done / size:.1f} of {total / size:.1f} {unit}"
