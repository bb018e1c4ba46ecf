"""Greedy and sampled choices, and the log probabilities beside them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from common.errors import GenerationFailed
from tests.unit.engine.support import make_job
from workers.engine.noise import gumbel, hashes
from workers.engine.plan import FloatArray
from workers.engine.processors import process
from workers.engine.sampler import Choice, Sampler
from workers.engine.sequence import Sequence

VOCAB = 1_000
LOGITS = np.random.default_rng(3).normal(scale=3.0, size=(4, VOCAB)).astype(np.float32)


def sample(logits: FloatArray, *, generated: int = 0, **parameters: Any) -> Choice:
    job = make_job([1, 2, 3], generated_ids=[4] * generated, **{"max_new_tokens": 100_000, **parameters})
    return Sampler(logits.shape[-1]).sample(Sequence(job), logits)


def log_softmax(row: FloatArray) -> FloatArray:
    wide = row.astype(np.float64)
    return np.asarray(wide - wide.max() - np.log(np.exp(wide - wide.max()).sum()))


def test_greedy_takes_the_best_with_its_logprob() -> None:
    for row in LOGITS:
        choice = sample(row)
        assert choice.id == row.argmax()
        assert choice.logprob == pytest.approx(log_softmax(row)[choice.id], abs=1e-5)
        assert choice.top == []


def test_logits_are_not_changed() -> None:
    before = LOGITS.copy()
    sample(LOGITS[0], sample=True, temperature=0.5, top_k=5, top_p=0.5, typical_p=0.5, repetition_penalty=2.0)
    assert (before == LOGITS).all()


def test_greedy_follows_the_processed_scores() -> None:
    logits = np.array([3.0, 2.9, 0.0, 0.0], np.float32)
    assert sample(logits).id == 0
    job = make_job([0], repetition_penalty=1.5)
    assert Sampler(4).sample(Sequence(job), logits).id == 1


def test_logprob_of_the_only_token_left_is_zero() -> None:
    assert sample(LOGITS[0], sample=True, top_k=1).logprob == 0.0
    assert math.copysign(1, sample(LOGITS[0], sample=True, top_k=1).logprob or 0.0) == 1.0


def test_logprobs_print_as_float32() -> None:
    logits = np.log(np.array([0.7, 0.2, 0.1], np.float32))
    logprob = sample(logits).logprob
    assert logprob is not None
    assert repr(logprob) == str(np.float32(logprob))
    assert len(repr(logprob)) <= 12


def test_top_tokens_hold_ties_and_are_sorted() -> None:
    logits = np.array([-1.0, -3.0, -4.0, -2.0, -3.0], np.float32)
    choice = sample(logits, top_n_tokens=3)
    assert [token for token, _ in choice.top] == [0, 3, 1, 4]
    logprobs = [logprob for _, logprob in choice.top]
    assert logprobs == pytest.approx([log_softmax(logits)[i] for i in (0, 3, 1, 4)], abs=1e-6)


def test_top_tokens_do_not_hold_what_is_ruled_out() -> None:
    choice = sample(LOGITS[0], sample=True, top_k=2, top_n_tokens=5)
    assert len(choice.top) == 2
    assert sum(math.exp(logprob or 0.0) for _, logprob in choice.top) == pytest.approx(1.0)


def test_more_top_tokens_than_the_vocabulary() -> None:
    assert len(sample(np.zeros(3, np.float32), top_n_tokens=5).top) == 3


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("parameters", [{}, {"sample": True}, {"sample": True, "top_p": 0.9}, {"typical_p": 0.5}])
def test_scores_that_are_not_finite_fail_the_request(bad: float, parameters: dict[str, Any]) -> None:
    logits = LOGITS[0].copy()
    logits[500] = bad
    with pytest.raises(GenerationFailed, match="not finite"):
        sample(logits, **parameters)


def test_nothing_possible_fails_the_request() -> None:
    with pytest.raises(GenerationFailed, match="not finite"):
        sample(np.full(10, -np.inf, np.float32))


def test_impossible_tokens_are_never_drawn() -> None:
    logits = np.full(VOCAB, -np.inf, np.float32)
    logits[[7, 8]] = 0.0
    assert {sample(logits, sample=True, seed=seed).id for seed in range(50)} == {7, 8}


@pytest.mark.parametrize("parameters", [{}, {"temperature": 3.0}, {"top_k": 30}, {"top_p": 0.8}, {"typical_p": 0.7}])
def test_shortcuts_draw_what_the_whole_formula_draws(parameters: dict[str, Any]) -> None:
    """Gumbel-max over all tokens, spelled out, agrees with the prefiltered one in every draw."""
    ids = np.arange(VOCAB, dtype=np.uint32)
    for seed in range(60):
        row = LOGITS[seed % len(LOGITS)]
        scores = row.copy()
        process(scores, make_job([1], **parameters).parameters, [1, 2, 3], 2)
        expected = int(np.argmax(scores + gumbel(hashes(seed, 2, ids))))
        assert sample(row, generated=2, sample=True, seed=seed, **parameters).id == expected


def test_draws_follow_the_distribution() -> None:
    shares = np.array([0.5, 0.25, 0.15, 0.07, 0.03])
    logits = np.log(shares).astype(np.float32)
    sampler = Sampler(len(shares))
    draws = 8_000
    counts = np.zeros(len(shares))
    sequence = Sequence(make_job([1], sample=True, seed=99, max_new_tokens=draws))
    for _ in range(draws):
        choice = sampler.sample(sequence, logits)
        counts[choice.id] += 1
        sequence.ids.append(choice.id)
    chi2 = ((counts - draws * shares) ** 2 / (draws * shares)).sum()
    assert chi2 < 4 + 5 * math.sqrt(8)


def test_a_draw_depends_on_seed_and_index_only() -> None:
    flat = np.zeros(VOCAB, np.float32)
    drawn = sample(flat, sample=True, seed=5, generated=3)
    assert drawn == sample(flat, sample=True, seed=5, generated=3)
    assert drawn.id != sample(flat, sample=True, seed=6, generated=3).id
    assert drawn.id != sample(flat, sample=True, seed=5, generated=4).id


def test_prompt_logprobs_are_raw() -> None:
    following = [5, 6, 7, 8]
    choices = Sampler(VOCAB).prompt_choices(LOGITS, following)
    expected = [log_softmax(row)[token] for row, token in zip(LOGITS, following, strict=True)]
    assert [choice.id for choice in choices] == following
    assert [choice.logprob for choice in choices] == pytest.approx(expected, abs=1e-5)
    assert all(choice.top == [] for choice in choices)


def test_prompt_alternatives_are_the_best_of_each_row() -> None:
    best = [int(row.argmax()) for row in LOGITS[:2]]
    for choice, expected in zip(Sampler(VOCAB).prompt_choices(LOGITS[:2], best, 2), best, strict=True):
        assert choice.top[0] == (expected, choice.logprob)
        assert len(choice.top) == 2


def test_prompt_logprob_that_is_not_finite_is_none() -> None:
    logits = np.array([[0.0, -np.inf]], np.float32)
    assert Sampler(2).prompt_choices(logits, [1]) == [Choice(1, None)]
