"""What request parameters do to the scores of the next token, with TGI's semantics and in its order.

Every function changes a float32 vector of scores `[vocabulary]` in place; a token that is ruled out gets -inf. Ties are
kept together, so that the result does not depend on how a sort breaks them, and at least one token is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Ids

import numpy as np
import numpy.typing as npt

from common.parameters import GenerationParameters, Watermark
from workers.engine.watermark import green

Scores = npt.NDArray[np.float32]

_SMALLEST = 1e-30
"""Factors are kept between this and its inverse, well inside what float32 holds."""
_SORTED_WIDTHS = (256, 2048)
"""How many tokens top-p and typical-p sort before they fall back on all of them; the result is the same."""


def is_neutral(parameters: GenerationParameters) -> bool:
    """Whether `process` would change nothing."""
    return not adds(parameters) and parameters.temperature == 1.0 and not _truncates(parameters)


def adds(parameters: GenerationParameters) -> bool:
    """Whether anything but temperature and truncation changes the scores."""
    return (
        parameters.watermark is not None
        or parameters.repetition_penalty != 1.0
        or parameters.frequency_penalty != 0.0
        or parameters.presence_penalty != 0.0
        or parameters.openai_frequency_penalty != 0.0
        or bool(parameters.logit_bias)
        or parameters.grammar is not None
    )


def process(
    scores: Scores,
    parameters: GenerationParameters,
    ids: Ids[int],
    generated: int,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> bool:
    """Apply all of a request's rules, in this order:

    watermark, repetition penalty, TGI's frequency penalty, OpenAI's presence and frequency penalties, logit bias, grammar,
    temperature, top-k, top-p, min-p, typical-p. It is TGI's order; what TGI does not have comes where its kind is: what
    adds to scores before the grammar's mask, what truncates beside top-p, as transformers has it.

    Args:
        scores: logits of the next token; changed in place.
        parameters: rules with neutral values are skipped.
        ids: prompt and generated ids.
        generated: how many of them are generated.
        allowed: what the grammar allows, `[vocabulary]`; None without a grammar.

    Returns:
        Whether tokens may have been ruled out.
    """
    if parameters.watermark is not None:
        add_watermark(scores, parameters.watermark, ids[-1])
    if parameters.repetition_penalty != 1.0:
        penalise_repetition(scores, parameters.repetition_penalty, ids)
    if parameters.frequency_penalty != 0.0:
        penalise_frequency(scores, parameters.frequency_penalty, ids)
    if generated and (parameters.presence_penalty != 0.0 or parameters.openai_frequency_penalty != 0.0):
        penalise_counts(
            scores, parameters.presence_penalty, parameters.openai_frequency_penalty, ids[len(ids) - generated :]
        )
    if parameters.logit_bias:
        add_bias(scores, parameters.logit_bias)
    if allowed is not None:
        np.copyto(scores, -np.inf, where=~allowed)
    if parameters.temperature != 1.0:
        divide_by_temperature(scores, parameters.temperature)
    if parameters.top_k > 0:
        keep_top_k(scores, parameters.top_k)
    if parameters.top_p < 1.0:
        keep_top_p(scores, parameters.top_p)
    if parameters.min_p > 0.0:
        keep_min_p(scores, parameters.min_p)
    if parameters.typical_p < 1.0:
        keep_typical(scores, parameters.typical_p)
    return allowed is not None or _truncates(parameters)


def _truncates(parameters: GenerationParameters) -> bool:
    return parameters.top_k > 0 or parameters.top_p < 1.0 or parameters.min_p > 0.0 or parameters.typical_p < 1.0


def add_watermark(scores: Scores, watermark: Watermark, previous: int) -> None:
    """Add the watermark's `delta` to the scores of tokens that are green behind the token `previous`."""
    chosen = green(watermark, previous, np.arange(len(scores), dtype=np.uint32))
    scores += chosen * np.float32(watermark.delta)


def penalise_repetition(scores: Scores, penalty: float, ids: Ids[int]) -> None:
    """Scores of tokens seen before are divided by `penalty` when positive, else multiplied (CTRL, Keskar et al. 2019)."""
    seen = np.array(ids, dtype=np.int64)
    before = scores[seen]
    factor = safe_factor(penalty)
    # A token seen twice is written twice with the same value.
    scores[seen] = np.where(before < 0, before * factor, before / factor)


def penalise_frequency(scores: Scores, penalty: float, ids: Ids[int]) -> None:
    """Subtract `penalty` times a token's share of prompt and answer.

    TGI's rule on its batched path: the relative frequency, unlike OpenAI's count.
    """
    seen, counts = np.unique(np.array(ids, dtype=np.int64), return_counts=True)
    scores[seen] -= (penalty * counts / len(ids)).astype(np.float32)


def penalise_counts(scores: Scores, presence: float, frequency: float, generated: Ids[int]) -> None:
    """Subtract `presence`, and `frequency` for each time, from the scores of generated tokens: OpenAI's penalties."""
    seen, counts = np.unique(np.array(generated, dtype=np.int64), return_counts=True)
    scores[seen] -= (presence + frequency * counts).astype(np.float32)


def add_bias(scores: Scores, bias: Mapping[int, float]) -> None:
    """Add to the scores of single tokens; ids must be in the vocabulary."""
    ids = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
    scores[ids] += np.fromiter(bias.values(), dtype=np.float32, count=len(bias))


def divide_by_temperature(scores: Scores, temperature: float) -> None:
    """Scores relative to the best one, over `temperature`: so that no temperature is too low."""
    scores -= scores.max()
    with np.errstate(over="ignore"):
        scores /= safe_factor(temperature)


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


def keep_min_p(scores: Scores, p: float) -> None:
    """Keep the tokens whose probability is at least `p` times that of the best one (Nguyen et al. 2024)."""
    with np.errstate(divide="ignore"):
        _keep_from(scores, scores.max() + np.log(np.float32(p)))


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


def safe_factor(value: float) -> np.float32:
    """A temperature or penalty that scores can be divided by without leaving float32."""
    return np.float32(min(max(value, _SMALLEST), 1 / _SMALLEST))


def _widths(count: int) -> list[int]:
    return [*(width for width in _SORTED_WIDTHS if width < count), count]


def _keep_from(scores: Scores, threshold: np.float32) -> None:
    scores[scores < threshold] = -np.inf
