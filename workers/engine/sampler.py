"""From logits to the next token of each sequence, with its log probability and the alternatives.

A pure function of `(parameters, ids, logits row, index of the generated token)`: neither the other rows of the step nor
the row's place matter, and a token drawn again is the same token. Sampling is Gumbel-max: the largest of score plus
noise is a draw from the softmax of the scores, and small differences of the logits hardly ever change it.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from common.errors import GenerationFailed
from workers.engine.noise import FAR, gumbel, hashes, rare
from workers.engine.plan import FloatArray
from workers.engine.processors import Scores, is_neutral, process
from workers.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Choice:
    """The next token. Log probabilities are those of the processed scores, None where they are not finite."""

    id: int
    logprob: float | None
    top: list[tuple[int, float | None]] = field(default_factory=list)
    """Best tokens with their log probabilities, best first, lower id first among equals."""


class Sampler:
    """Samples for a vocabulary of a given size; holds scratch memory only."""

    def __init__(self, vocab_size: int) -> None:
        self._ids = np.arange(vocab_size, dtype=np.uint32)
        self._scratch = np.empty(vocab_size, dtype=np.float32)

    def sample(self, sequence: Sequence, logits: Scores, allowed: npt.NDArray[np.bool_] | None = None) -> Choice:
        """The next token of one sequence.

        Rows are taken one at a time although numpy could take all at once: a row fits the cache, a step does not.

        Args:
            sequence: parameters and ids so far.
            logits: `[vocabulary]`; not changed.
            allowed: `[vocabulary]`, what the grammar allows; None without a grammar.

        Raises:
            GenerationFailed: the scores are not finite, or the grammar allows nothing.
        """
        parameters = sequence.job.parameters
        if parameters.grammar is not None and allowed is None:
            raise GenerationFailed("what the grammar allows is not known")
        scores, truncated = logits, False
        best_id = _best(scores)
        if not is_neutral(parameters):
            scores = logits.copy()
            truncated = process(scores, parameters, sequence.ids, sequence.generated, allowed)
            best_id = _best(scores)
        best = scores[best_id]
        chosen = best_id
        if parameters.sample:
            chosen = self._draw(scores, best_id, parameters.seed, sequence.generated, truncated)
        log_total = self._log_total(scores, best)
        top = _top(scores, parameters.top_n_tokens, log_total) if parameters.top_n_tokens else []
        return Choice(chosen, _short(scores[chosen] - log_total), top)

    def prompt_choices(self, logits: FloatArray, next_ids: Ids[int], top: int = 0) -> list[Choice]:
        """Prompt tokens with their log probabilities under the raw logits of the tokens before them.

        Args:
            logits: `[len(next_ids), vocabulary]`.
            next_ids: the prompt tokens that follow each row.
            top: how many alternatives to give for each.
        """
        choices = []
        for row, token in zip(logits, next_ids, strict=True):
            log_total = self._log_total(row, row.max())
            best = _top(row, top, log_total) if top else []
            choices.append(Choice(token, _short(row[token] - log_total), best))
        return choices

    def _draw(self, scores: Scores, best_id: int, seed: int, index: int, truncated: bool) -> int:
        candidates = self._ids
        if truncated:
            candidates = np.flatnonzero(scores > -np.inf).astype(np.uint32)
            scores = scores[candidates]
            best_id = int(np.searchsorted(candidates, best_id))
        hashed = hashes(seed, index, candidates)
        # Logarithms only for tokens that can win: against the best score and its own noise, a score behind by more than
        # FAR wins only with noise above FAR.
        bound = scores[best_id] + gumbel(hashed[best_id : best_id + 1])[0] - FAR
        contenders = np.flatnonzero((scores >= bound) | rare(hashed))
        return int(candidates[contenders[np.argmax(scores[contenders] + gumbel(hashed[contenders]))]])

    def _log_total(self, row: Scores, best: np.float32) -> np.float32:
        """log(sum(exp(row))), `best` being the largest score."""
        np.subtract(row, best, out=self._scratch)
        np.exp(self._scratch, out=self._scratch)
        return np.float32(best + np.log(self._scratch.sum()))


def _best(scores: Scores) -> int:
    best_id = int(scores.argmax())  # the first NaN if there is one
    if not np.isfinite(scores[best_id]):
        raise GenerationFailed("the model's scores are not finite")
    return best_id


def _top(row: Scores, count: int, log_total: np.float32) -> list[tuple[int, float | None]]:
    """The `count` best tokens, all that tie with the last of them, none that is ruled out."""
    count = min(count, len(row))
    threshold = np.partition(row, len(row) - count)[len(row) - count]
    ids = np.flatnonzero((row >= threshold) & (row > -np.inf))
    order = np.argsort(-row[ids], kind="stable")
    return [(int(token), _short(row[token] - log_total)) for token in ids[order]]


def _short(logprob: np.float32) -> float | None:
    """The double that prints with the digits a float32 needs, as TGI's answers show it."""
    return float(str(np.float32(logprob))) + 0.0 if np.isfinite(logprob) else None
