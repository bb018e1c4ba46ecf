"""The sampler's most common rules in torch, so that on a GPU the next step need not wait for the host.

The same semantics, noise and ties as `processors` and `sampler`: greedy, temperature, top-k, top-p, min-p. A request with
any other rule is sampled on the host. Which of the two samples a request depends on its parameters alone.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.parameters import GenerationParameters
from workers.engine.noise import key
from workers.engine.processors import adds, safe_factor
from workers.engine.staging import Upload

ROWS = 64
"""Rows sampled at once: what the noise takes in memory is some 50 bytes per row and token of the vocabulary."""
NOT_FINITE = -1
"""In place of a token id: the model's scores are not finite."""


def samples(parameters: GenerationParameters) -> bool:
    """Whether the rules of a request are all known here."""
    return not adds(parameters) and parameters.typical_p >= 1.0 and not parameters.top_n_tokens


@dataclass(frozen=True, slots=True)
class Rules:
    """What the rows of a step ask for, on the device; all `[rows]`."""

    factor: Tensor
    """float32: what scores are divided by; 1 leaves them as they are."""
    top_k: Tensor
    """int64: tokens kept, at least 1."""
    top_p: Tensor
    """float64."""
    min_p: Tensor
    """float32: how far below the best score a token may be, 0 or less."""
    draw: Tensor
    """bool: with noise."""
    key: Tensor
    """int32 `[rows, 2]`: low and high word of the noise's key."""
    draws: bool
    """Whether any row is drawn ..."""
    truncates: bool
    """... and whether any rules tokens out."""


def stage_rules(rows: Many[tuple[GenerationParameters, int]], vocab_size: int, upload: Upload) -> Rules:
    """
    Args:
        rows: the parameters of each row, and the index of the token to choose, counted from the first generated one.
    """
    asked = [parameters for parameters, _ in rows]
    keys = [key(parameters.seed, index) if parameters.sample else 0 for parameters, index in rows]
    return Rules(
        factor=upload(np.array([safe_factor(p.temperature) for p in asked], dtype=np.float32)),
        top_k=upload(np.array([min(p.top_k or vocab_size, vocab_size) for p in asked], dtype=np.int64)),
        top_p=upload(np.array([p.top_p for p in asked], dtype=np.float64)),
        min_p=upload(np.array([np.log(np.float32(p.min_p)) if p.min_p else -np.inf for p in asked], dtype=np.float32)),
        draw=upload(np.array([p.sample for p in asked], dtype=np.bool_)),
        key=upload(np.array(keys, dtype=np.uint64).view(np.int32).reshape(-1, 2)),
        draws=any(p.sample for p in asked),
        truncates=any(p.top_k > 0 or p.top_p < 1.0 or p.min_p > 0.0 for p in asked),
    )


def choose(logits: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """The next token of each row.

    Args:
        logits: float32 `[rows, vocabulary]`; not changed.

    Returns:
        ids, int64 `[rows]` (or `NOT_FINITE`), and log probabilities under the processed scores, float32 `[rows]`.
    """
    parts = [_choose(logits[i : i + ROWS], _part(rules, slice(i, i + ROWS))) for i in range(0, len(logits), ROWS)]
    ids, logprobs = zip(*parts, strict=True)
    return torch.cat(ids), torch.cat(logprobs)


@torch.inference_mode()
def rehearse(rows: int, vocab_size: int, device: torch.device) -> None:
    """Choose for as many rows by all rules at once, so that the memory it takes is known."""
    asked = GenerationParameters(max_new_tokens=1, seed=0, sample=True, temperature=0.5, top_k=2, top_p=0.5, min_p=0.1)
    rules = stage_rules([(asked, 0)] * rows, vocab_size, lambda array: torch.from_numpy(array).to(device))
    choose(torch.zeros(rows, vocab_size, device=device), rules)


def _part(rules: Rules, rows: slice) -> Rules:
    return Rules(
        rules.factor[rows],
        rules.top_k[rows],
        rules.top_p[rows],
        rules.min_p[rows],
        rules.draw[rows],
        rules.key[rows],
        rules.draws,
        rules.truncates,
    )


def _choose(logits: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    best = logits.amax(dim=-1, keepdim=True)
    factor = rules.factor[:, None]
    scores = torch.where(factor == 1, logits, (logits - best) / factor)
    if rules.truncates:
        scores = scores.masked_fill(scores < _threshold(scores, rules), -torch.inf)
    ids = scores.argmax(dim=-1)
    if rules.draws:
        drawn = (scores + gumbel(hashes(rules.key, scores.shape[-1]))).argmax(dim=-1)
        ids = torch.where(rules.draw, drawn, ids)
    logprobs = scores.gather(1, ids[:, None])[:, 0] - scores.logsumexp(dim=-1)
    return torch.where(best[:, 0].isfinite(), ids, NOT_FINITE), logprobs


def _threshold(scores: Tensor, rules: Rules) -> Tensor:
    """The lowest score that is kept, `[rows, 1]`: all that tie with it stay."""
    ordered = scores.sort(dim=-1, descending=True).values
    by_k = ordered.gather(1, rules.top_k[:, None] - 1)
    kept = ordered.masked_fill(ordered < by_k, -torch.inf)
    mass = (kept - kept[:, :1]).double().exp_().cumsum(dim=-1)
    # A token stays while the mass of the tokens before it is short of p; none of no mass counts where p is 1.
    before = mass[:, :-1] < rules.top_p[:, None] * mass[:, -1:]
    by_p = kept.gather(1, before.sum(dim=-1, keepdim=True))
    by_p = torch.where(rules.top_p[:, None] < 1, by_p, by_k)
    return torch.maximum(torch.maximum(by_k, by_p), ordered[:, :1] + rules.min_p[:, None])


def hashes(keys: Tensor, count: int) -> Tensor:
    """`noise.hashes` of token ids 0 to `count - 1`, as int32 `[rows, count]` with the same bits."""
    ids = torch.arange(count, dtype=torch.int32, device=keys.device)
    mixed = _finalise(ids * _signed(0x9E3779B9) + keys[:, :1])
    return _finalise(mixed ^ keys[:, 1:])


def gumbel(hashed: Tensor) -> Tensor:
    """`noise.gumbel`, float64."""
    uniform = hashed.double()
    uniform = torch.where(uniform < 0, uniform + 2.0**32, uniform).add_(0.5).div_(-(2.0**32))
    return uniform.log1p_().neg_().log_().neg_()


def _finalise(h: Tensor) -> Tensor:
    """MurmurHash3's `fmix32`; int32 wraps around as it should, and shifts are made logical by a mask."""
    h = h ^ ((h >> 16) & 0xFFFF)
    h = h * _signed(0x85EBCA6B)
    h = h ^ ((h >> 13) & 0x7FFFF)
    h = h * _signed(0xC2B2AE35)
    return h ^ ((h >> 16) & 0xFFFF)


def _signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word
