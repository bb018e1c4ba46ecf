"""The garbage collector, for processes that load much and then serve for long."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 20_000
"""New container objects between collections; Python's own 700 or 2,000 is meant for programs with small heaps."""


def settle_heap() -> None:
    """Call once everything is loaded: what is alive now stays, so collections need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
