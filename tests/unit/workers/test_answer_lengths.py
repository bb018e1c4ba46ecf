"""The estimate of how long answers become."""

from __future__ import annotations

import random

import pytest

from workers.answer_lengths import LARGEST_MARGIN, LEAST_MARGIN, SEEN_ENOUGH, UNKNOWN, AnswerLengths


@pytest.mark.parametrize("mean", [3, 50, 1000])
def test_few_answers_are_longer_and_it_is_far_from_the_longest(mean: int) -> None:
    chance, lengths = random.Random(mean), AnswerLengths()
    for _ in range(SEEN_ENOUGH - 1):
        lengths.ended(mean)
        assert lengths.expected == UNKNOWN
    longer = 0
    for _ in range(1000):
        tokens = 1 + int(chance.expovariate(1 / mean))
        lengths.ended(tokens)
        longer += chance.expovariate(1 / mean) > lengths.expected
        assert lengths.expected < 12 * mean
    assert longer < 200


def test_follows_a_change() -> None:
    lengths = AnswerLengths()
    for _ in range(100):
        lengths.ended(10)
    assert lengths.expected == 11
    for _ in range(200):
        lengths.ended(500)
    assert 490 < lengths.expected < 600


def test_preemptions_widen_the_margin_within_bounds_and_calm_narrows_it() -> None:
    lengths = AnswerLengths()
    for _ in range(100):
        lengths.ended(99)
    for preemptions in range(1, 20):
        lengths.preempted(preemptions)
    assert lengths.expected == pytest.approx(1 + 99 * LARGEST_MARGIN, rel=0.1)
    for _ in range(200):
        lengths.preempted(19)
    assert lengths.expected == pytest.approx(1 + 99 * LEAST_MARGIN, rel=0.1)
    # A new engine counts from nothing.
    lengths.preempted(0)
    assert lengths.expected == pytest.approx(1 + 99 * LEAST_MARGIN, rel=0.1)
