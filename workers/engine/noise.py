"""Sampling noise as a pure function of (seed, index of the generated token, token id).

No generator state: a token drawn again, on another worker or in another batch, is drawn with the same noise. Integers are
exact on every platform. Mixers: splitmix64 (Steele, Lea, Flood 2014) for the key, the 32-bit finaliser of MurmurHash3
(Appleby) for each token id.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_MASK64 = 2**64 - 1
_GOLDEN32 = np.uint32(0x9E3779B9)

FAR = 5.0
"""Noise above this is rare: see `rare`."""
_RARE_HASH = np.uint32(math.ceil(math.exp(-FAR) * 2**32))


def splitmix64(value: int) -> int:
    """One output of splitmix64 for the state `value` (64-bit unsigned)."""
    z = (value + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def key(seed: int, index: int) -> int:
    """What the noise of one draw depends on besides the token ids: 64 bits. Arguments as for `hashes`."""
    return splitmix64(splitmix64(seed) ^ index)


def hashes(seed: int, index: int, ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """One uniform 32-bit integer per token id.

    Args:
        seed: the request's, 0 <= seed < 2**64.
        index: of the token to draw, counted from the first generated one.
        ids: `[n]` token ids.
    """
    word = key(seed, index)
    mixed: npt.NDArray[np.uint32] = ids * _GOLDEN32
    mixed += np.uint32(word & 0xFFFFFFFF)
    _finalise(mixed)
    mixed ^= np.uint32(word >> 32)
    return _finalise(mixed)


def rare(hashed: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """Where `gumbel` may exceed `FAR` (all places where it does, and hardly another)."""
    return hashed <= _RARE_HASH


def gumbel(hashed: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise: `-log(e)` with `e = -log(1 - u)` exponential and `u = (hash + 0.5) / 2**32`.

    All 32 bits count, and `u` is finest near 0, where the largest values come from (22.9 at most).
    """
    exponential: npt.NDArray[np.float64] = -np.log1p((hashed + 0.5) / -(2.0**32))
    return -np.log(exponential)


def _finalise(h: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """MurmurHash3's `fmix32`, in place."""
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h
