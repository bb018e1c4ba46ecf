"""Which tokens are green: a pure function of a key, the token before and the token, the same on every device.

After Kirchenbauer et al., "A Watermark for Large Language Models" (2023). Where they permute the vocabulary with a
device's random generator, each token is hashed here: green with probability gamma, and nothing to permute.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence as Ids
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.parameters import Watermark
from workers.engine.noise import hashes

_APART = 0x7761746572_6B6579
"""Keeps the green lists apart from the sampling noise of a seed that equals the key."""


def green(watermark: Watermark, previous: int, ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """Whether each of `ids` is green behind the token `previous`."""
    return hashes(watermark.key ^ _APART, previous, ids) < np.uint32(int(watermark.gamma * 2**32))


@dataclass(frozen=True, slots=True)
class Detection:
    """What a text tells about the watermark."""

    scored: int
    """Pairs of neighbouring tokens looked at; repeated pairs count once."""
    green: int
    """Those whose second token is green."""
    z: float
    """Standard deviations above what a text without the watermark has on average."""
    p_value: float
    """Probability that a text without the watermark scores as high."""


def detect(watermark: Watermark, ids: Ids[int]) -> Detection:
    """Look for a watermark in token ids.

    The first id is only context. A pair of tokens that comes again says nothing new, so it counts once.

    Raises:
        ValueError: fewer than two ids.
    """
    pairs = dict.fromkeys(itertools.pairwise(ids))
    if not pairs:
        raise ValueError("a watermark can be looked for in two tokens or more")
    count = sum(bool(green(watermark, before, np.array([token], dtype=np.uint32))[0]) for before, token in pairs)
    expected = watermark.gamma * len(pairs)
    z = (count - expected) / math.sqrt(expected * (1 - watermark.gamma))
    return Detection(len(pairs), count, z, math.erfc(z / math.sqrt(2)) / 2)
