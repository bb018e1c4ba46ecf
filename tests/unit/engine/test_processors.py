"""Each rule against its definition in plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.parameters import GenerationParameters
from workers.engine import processors
from workers.engine.processors import Scores

values = st.lists(st.sampled_from([-3.0, -1.5, 0.0, 0.25, 1.0, 2.5, 2.5, 4.0]), min_size=1, max_size=12)


def scores_of(numbers: list[float]) -> Scores:
    return np.array(numbers, dtype=np.float32)


def kept(scores: Scores) -> list[int]:
    return np.flatnonzero(scores > -np.inf).tolist()


def probabilities(scores: Scores) -> Scores:
    shares = np.exp(scores.astype(np.float64) - scores.max())
    return np.asarray(shares / shares.sum())


def test_repetition_penalty_divides_and_multiplies_once_per_token() -> None:
    scores = scores_of([2.0, -2.0, 1.0, 0.0])
    processors.penalise_repetition(scores, 2.0, [0, 0, 1, 3, 1])
    assert scores.tolist() == [1.0, -4.0, 1.0, 0.0]


def test_frequency_penalty_is_relative_to_the_length() -> None:
    scores = scores_of([1.0, 1.0, 1.0])
    processors.penalise_frequency(scores, 2.0, [0, 0, 0, 1])
    assert scores.tolist() == [-0.5, 0.5, 1.0]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=20), st.sampled_from([-2.0, 0.0, 0.5]), st.sampled_from([0.0, 1.5])
)
def test_openai_penalties_are_additive_and_count(generated: list[int], presence: float, frequency: float) -> None:
    scores = scores_of([1.0, 0.5, -1.0, 0.0, 3.0])
    expected = [
        score - (presence + frequency * generated.count(token) if token in generated else 0.0)
        for token, score in enumerate(scores.tolist())
    ]
    processors.penalise_counts(scores, presence, frequency, generated)
    assert scores.tolist() == expected


def test_openai_penalties_look_at_the_answer_and_tgis_at_the_prompt_too() -> None:
    def scores_after(**parameters: Any) -> list[float]:
        scores = scores_of([1.0, 1.0, 1.0, 1.0])
        processors.process(scores, GenerationParameters(max_new_tokens=1, seed=0, **parameters), [0, 0, 1, 2], 2)
        return [float(score) for score in scores]

    assert scores_after(presence_penalty=1.0) == [1.0, 0.0, 0.0, 1.0]
    assert scores_after(openai_frequency_penalty=2.0) == [1.0, -1.0, -1.0, 1.0]
    assert scores_after(frequency_penalty=1.0) == [0.5, 0.75, 0.75, 1.0]
    assert scores_after(repetition_penalty=2.0) == [0.5, 0.5, 0.5, 1.0]


def test_bias_is_added() -> None:
    scores = scores_of([1.0, 2.0, 3.0])
    processors.add_bias(scores, {2: -100.0, 0: 0.5})
    assert scores.tolist() == [1.5, 2.0, -97.0]


@given(values, st.floats(0.01, 1.0))
def test_min_p_is_relative_to_the_best(numbers: list[float], p: float) -> None:
    scores = scores_of(numbers)
    shares = probabilities(scores)
    processors.keep_min_p(scores, p)
    sure = [i for i, share in enumerate(shares) if share >= p * shares.max() * (1 + 1e-5)]
    possible = [i for i, share in enumerate(shares) if share >= p * shares.max() * (1 - 1e-5)]
    assert set(sure) <= set(kept(scores)) <= set(possible)
    assert int(np.argmax(numbers)) in kept(scores)


def test_the_grammar_comes_before_what_truncates() -> None:
    scores = scores_of([9.0, 8.0, 1.0, 0.5])
    parameters = GenerationParameters(max_new_tokens=1, seed=0, top_k=1)
    assert processors.process(scores, parameters, [0], 0, np.array([False, False, True, True]))
    assert kept(scores) == [2]


@given(values, st.integers(1, 15))
def test_top_k_keeps_ties(numbers: list[float], k: int) -> None:
    scores = scores_of(numbers)
    threshold = sorted(numbers, reverse=True)[min(k, len(numbers)) - 1]
    processors.keep_top_k(scores, k)
    assert kept(scores) == [i for i, number in enumerate(numbers) if number >= threshold]


@given(values, st.floats(0.05, 0.99))
def test_top_p_is_the_smallest_set_that_reaches_p(numbers: list[float], p: float) -> None:
    scores = scores_of(numbers)
    shares = probabilities(scores)
    processors.keep_top_p(scores, p)
    keeps = kept(scores)
    assert keeps
    threshold = min(numbers[i] for i in keeps)
    assert keeps == [i for i, number in enumerate(numbers) if number >= threshold]
    assert shares[keeps].sum() >= p - 1e-6
    better = [i for i in keeps if numbers[i] > threshold]
    assert shares[better].sum() < p + 1e-6


@given(values, st.floats(0.05, 0.99))
def test_typical_keeps_the_least_surprising_surprises(numbers: list[float], p: float) -> None:
    scores = scores_of(numbers)
    shares = probabilities(scores)
    entropy = -(shares * np.log(shares)).sum()
    distance = np.abs(-np.log(shares) - entropy).round(9)
    processors.keep_typical(scores, p)
    keeps = kept(scores)
    assert keeps
    farthest = max(distance[i] for i in keeps)
    assert keeps == [i for i in range(len(numbers)) if distance[i] <= farthest]
    assert shares[keeps].sum() >= p - 1e-6
    nearer = [i for i in keeps if distance[i] < farthest]
    assert shares[nearer].sum() < p + 1e-6


@pytest.mark.parametrize("rule", [processors.keep_top_p, processors.keep_typical])
@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.99])
def test_sorting_a_part_gives_what_sorting_all_gives(
    monkeypatch: pytest.MonkeyPatch, rule: Callable[[Scores, float], None], scale: float, p: float
) -> None:
    logits = np.random.default_rng(0).normal(scale=scale, size=10_000).astype(np.float32)
    partly, wholly = logits.copy(), logits.copy()
    rule(partly, p)
    monkeypatch.setattr(processors, "_SORTED_WIDTHS", ())
    rule(wholly, p)
    assert kept(partly) == kept(wholly)


def test_rules_leave_ruled_out_tokens_out() -> None:
    scores = scores_of([1.0, 2.0, 3.0, 2.9])
    processors.keep_top_k(scores, 2)
    processors.keep_top_p(scores, 0.99)
    processors.keep_typical(scores, 0.9)
    assert set(kept(scores)) <= {2, 3}


@pytest.mark.parametrize("temperature", [1e-300, 1e-5, 1e30, 1e300])
def test_no_temperature_is_too_extreme(temperature: float) -> None:
    scores = scores_of([1.0, 2.0, -np.inf])
    processors.divide_by_temperature(scores, temperature)
    assert scores.argmax() == 1
    assert np.isfinite(scores[1])
    assert scores[2] == -np.inf


def test_temperature_divides_differences() -> None:
    scores = scores_of([1.0, 2.0, 5.0])
    processors.divide_by_temperature(scores, 0.5)
    assert np.diff(scores).tolist() == [2.0, 6.0]


@pytest.mark.parametrize("penalty", [1e-300, 1e300])
def test_no_repetition_penalty_is_too_extreme(penalty: float) -> None:
    scores = scores_of([1.0, -2.0, 0.0])
    processors.penalise_repetition(scores, penalty, [0, 1, 2])
    assert np.isfinite(scores).all()
