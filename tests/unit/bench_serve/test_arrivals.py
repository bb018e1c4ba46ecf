"""When requests are sent: the same times for the same seed, and the distribution that is asked for."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from ops.bench.serve.arrivals import moments


def drawn(rate: float, burstiness: float, count: int, seed: int = 0) -> list[float]:
    return list(islice(moments(rate, burstiness, [seed]), count))


def test_the_first_request_comes_at_once_and_times_only_grow() -> None:
    times = drawn(5, 1, 1000)
    assert times[0] == 0
    assert times == sorted(times)


def test_a_seed_is_a_series_and_a_longer_run_begins_like_a_shorter_one() -> None:
    assert drawn(5, 1, 700) == drawn(5, 1, 1000)[:700]
    assert drawn(5, 1, 100) != drawn(5, 1, 100, seed=1)


@pytest.mark.parametrize("rate", [0.5, 40.0])
@pytest.mark.parametrize("burstiness", [0.25, 1.0, 8.0])
def test_gaps_have_the_mean_and_the_deviation_of_their_gamma_distribution(rate: float, burstiness: float) -> None:
    gaps = np.diff(drawn(rate, burstiness, 200_000))
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.02)
    assert gaps.std() == pytest.approx(1 / (rate * burstiness**0.5), rel=0.03)


def test_poisson_counts_vary_as_much_as_their_mean() -> None:
    counts = np.bincount(np.array(drawn(20, 1, 200_000)).astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1, rel=0.05)


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert drawn(float("inf"), 1, 3) == [0, 0, 0]
