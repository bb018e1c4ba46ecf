"""The noise is exact in its integers, uniform, and independent between seeds, indices and tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workers.engine.noise import FAR, gumbel, hashes, rare, splitmix64

MASK32 = 2**32 - 1
GOLDEN = {
    (0, 0): [272556288, 4273624551, 1194070940, 1221592041],
    (42, 7): [2259650689, 2212221116, 667521655, 4063773127],
}
ALL = np.arange(49_152, dtype=np.uint32)


def fmix32(h: int) -> int:
    """MurmurHash3's finaliser on plain integers."""
    h ^= h >> 16
    h = h * 0x85EBCA6B & MASK32
    h ^= h >> 13
    h = h * 0xC2B2AE35 & MASK32
    return h ^ (h >> 16)


def scalar_hash(seed: int, index: int, token: int) -> int:
    key = splitmix64(splitmix64(seed) ^ index)
    return fmix32(fmix32((token * 0x9E3779B9 + (key & MASK32)) & MASK32) ^ (key >> 32))


def test_splitmix64_is_the_published_one() -> None:
    """First outputs for the state 1234567, as the reference implementation gives them."""
    state, outputs = 1234567, []
    for _ in range(5):
        outputs.append(splitmix64(state))
        state = (state + 0x9E3779B97F4A7C15) % 2**64
    assert outputs == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_fmix32_is_the_published_one() -> None:
    assert [fmix32(h) for h in (0, 1, 0xFFFFFFFF)] == [0, 0x514E28B7, 0x81F16F39]


@pytest.mark.parametrize("seed", [0, 1, 42, 2**63, 2**64 - 1])
@pytest.mark.parametrize("index", [0, 1, 4095])
def test_integers_are_exact(seed: int, index: int) -> None:
    ids = np.array([0, 1, 2, 49_151, 151_935, 2**32 - 1], dtype=np.uint32)
    assert hashes(seed, index, ids).tolist() == [scalar_hash(seed, index, int(token)) for token in ids]


def test_integers_do_not_change_between_versions() -> None:
    """A seed must give the same text after an upgrade: these are fixed."""
    ids = np.arange(4, dtype=np.uint32)
    assert hashes(0, 0, ids).tolist() == GOLDEN[0, 0]
    assert hashes(42, 7, ids).tolist() == GOLDEN[42, 7]


def test_input_is_not_changed() -> None:
    ids = np.arange(4, dtype=np.uint32)
    hashes(3, 4, ids)
    assert ids.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("seed", "index"), [(0, 0), (1, 0), (0, 1), (2**64 - 1, 1000)])
def test_uniform(seed: int, index: int) -> None:
    counts = np.bincount(hashes(seed, index, ALL) >> np.uint32(24), minlength=256)
    expected = len(ALL) / 256
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi2 - 255) < 5 * math.sqrt(2 * 255)


def test_uniform_over_indices_and_seeds() -> None:
    token = np.array([17], dtype=np.uint32)
    by_index = [int(hashes(5, index, token)[0]) >> 28 for index in range(8_000)]
    by_seed = [int(hashes(seed, 5, token)[0]) >> 28 for seed in range(8_000)]
    for values in (by_index, by_seed):
        chi2 = ((np.bincount(values, minlength=16) - 500) ** 2 / 500).sum()
        assert abs(chi2 - 15) < 5 * math.sqrt(30)


@pytest.mark.parametrize(("a", "b"), [((0, 0), (0, 1)), ((0, 0), (1, 0)), ((3, 5), (5, 3)), ((1, 1), (2, 2))])
def test_not_correlated(a: tuple[int, int], b: tuple[int, int]) -> None:
    x, y = (hashes(*key, ALL) / 2**32 for key in (a, b))
    assert abs(np.corrcoef(x, y)[0, 1]) < 5 / math.sqrt(len(ALL))
    assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 5 / math.sqrt(len(ALL))


def test_gumbel_moments() -> None:
    noise = np.concatenate([gumbel(hashes(seed, 0, ALL)) for seed in range(20)])
    assert abs(noise.mean() - np.euler_gamma) < 5 * math.pi / math.sqrt(6 * len(noise))
    assert abs(noise.var() - math.pi**2 / 6) < 0.02


def test_gumbel_range_is_finite() -> None:
    ends = gumbel(np.array([0, 2**32 - 1], dtype=np.uint32))
    assert ends == pytest.approx([22.8739, -3.1299], abs=1e-3)


def test_rare_is_where_noise_is_large() -> None:
    border = math.ceil(math.exp(-FAR) * 2**32)
    hashed = np.concatenate([hashes(9, 9, ALL), np.arange(border - 500, border + 500, dtype=np.uint32)])
    assert (rare(hashed) >= (gumbel(hashed) > FAR)).all()
    assert rare(hashes(9, 9, ALL)).mean() == pytest.approx(math.exp(-FAR), rel=0.2)
