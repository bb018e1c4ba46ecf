"""What request parameters do to the scores of the next token, with TGI's semantics and in its order.

Every function changes a float32 vector of scores `[vocabulary]` in place; a token that is ruled out gets -inf. Ties are
kept together, so that the result does not depend on how a sort breaks them, and at least one token is kept.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids

import numpy as np
import numpy.typing as npt

from common.parameters import GenerationParameters

Scores = npt.NDArray[np.float32]

_SMALLEST = 1e-30
"""Factors are kept between this and its inverse, well inside what float32 holds."""
_SORTED_WIDTHS = (256, 2048)
"""How many tokens top-p and typical-p sort before they fall back on all of them; the result is the same."""


def process(scores: Scores, parameters: GenerationParameters, ids: Ids[int]) -> bool:
    """Apply all of a request's rules.

    Args:
        scores: logits of the next token; changed in place.
        parameters: rules with neutral values are skipped.
        ids: prompt and generated ids, which both penalties look at.

    Returns:
        Whether tokens may have been ruled out.
    """
    if parameters.repetition_penalty != 1.0:
        penalise_repetition(scores, parameters.repetition_penalty, ids)
    if parameters.frequency_penalty != 0.0:
        penalise_frequency(scores, parameters.frequency_penalty, ids)
    if parameters.temperature != 1.0:
        divide_by_temperature(scores, parameters.temperature)
    if parameters.top_k > 0:
        keep_top_k(scores, parameters.top_k)
    if parameters.top_p < 1.0:
        keep_top_p(scores, parameters.top_p)
    if parameters.typical_p < 1.0:
        keep_typical(scores, parameters.typical_p)
    return parameters.top_k > 0 or parameters.top_p < 1.0 or parameters.typical_p < 1.0


def penalise_repetition(scores: Scores, penalty: float, ids: Ids[int]) -> None:
    """Scores of tokens seen before are divided by `penalty` when positive, else multiplied (CTRL, Keskar et al. 2019)."""
    seen = np.unique(np.array(ids, dtype=np.int64))
    before = scores[seen]
    factor = _factor(penalty)
    scores[seen] = np.where(before < 0, before * factor, before / factor)


def divide_by_temperature(scores: Scores, temperature: float) -> None:
    """Scores relative to the best one, over `temperature`: so that no temperature is too low."""
    scores -= scores.max()
    with np.errstate(over="ignore"):
        scores /= _factor(temperature)


def penalise_frequency(scores: Scores, penalty: float, ids: Ids[int]) -> None:
    """Subtract `penalty` times a token's share of prompt and answer.

    TGI's rule on its batched path: the relative frequency, unlike OpenAI's count.
    """
    seen, counts = np.unique(np.array(ids, dtype=np.int64), return_counts=True)
    scores[seen] -= (penalty * counts / len(ids)).astype(np.float32)


def keep_top_k(scores: Scores, k: int) -> None:
    """Keep the `k` best tokens and all that tie with the last of them."""
    if k < len(scores):
        _keep_from(scores, np.partition(scores, len(scores) - k)[len(scores) - k])


def keep_top_p(scores: Scores, p: float) -> None:
    """Keep the best tokens until their probabilities sum up to `p` (at least one), and all that tie with the last."""
    best = scores.max()
    total = np.exp(scores - best).sum(dtype=np.float64)
    for width in _widths(len(scores)):
        candidates = np.partition(scores, len(scores) - width)[len(scores) - width :]
        candidates = np.sort(candidates)[::-1]
        mass = np.cumsum(np.exp((candidates - best).astype(np.float64))) / total
        if mass[-1] >= p or width == len(scores):
            # A token stays while the mass of the tokens before it is short of p.
            last = int(np.count_nonzero(mass[:-1] < p))
            _keep_from(scores, candidates[last])
            return


def keep_typical(scores: Scores, p: float) -> None:
    """Keep the tokens whose surprise is nearest the entropy until their probabilities sum up to `p` (at least one).

    Locally typical sampling (Meister et al. 2022). The best token may go: the name says typical, not likely.
    """
    possible = np.flatnonzero(scores > -np.inf)
    logprobs = (scores[possible] - scores.max()).astype(np.float64)
    logprobs -= np.log(np.exp(logprobs).sum())
    probabilities = np.exp(logprobs)
    distance = np.abs(logprobs - (probabilities * logprobs).sum())  # |surprise - entropy|
    for width in _widths(len(distance)):
        nearest = np.argpartition(distance, width - 1)[:width]
        nearest = nearest[np.lexsort((nearest, distance[nearest]))]
        mass = np.cumsum(probabilities[nearest])
        if mass[-1] >= p or width == len(distance):
            last = int(np.count_nonzero(mass[:-1] < p))
            scores[possible[distance > distance[nearest[last]]]] = -np.inf
            return


def _factor(value: float) -> np.float32:
    return np.float32(min(max(value, _SMALLEST), 1 / _SMALLEST))


def _widths(count: int) -> list[int]:
    return [*(width for width in _SORTED_WIDTHS if width < count), count]


def _keep_from(scores: Scores, threshold: np.float32) -> None:
    scores[scores < threshold] = -np.inf
