"""When requests are sent: an open loop at a rate, with gaps of a gamma distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

_AT_ONCE = 256
"""Gaps that are drawn together; a longer run begins with the same ones."""


def moments(rate: float, burstiness: float, seed: list[int]) -> Iterator[float]:
    """Seconds from the start of a run, one for each request, without end; the first request comes at once.

    Args:
        rate: requests a second on average; with infinity all come at once.
        burstiness: shape of the gamma distribution of the gaps, whose mean is 1/rate and whose standard deviation is
            1/(rate * sqrt(burstiness)): 1 is a Poisson process, less comes in bursts, more is steadier.
    """
    if math.isinf(rate):
        while True:
            yield 0.0
    random = np.random.default_rng(seed)
    now = 0.0
    while True:
        for gap in random.gamma(burstiness, 1 / (rate * burstiness), _AT_ONCE):
            yield now
            now += float(gap)
