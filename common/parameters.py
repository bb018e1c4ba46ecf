"""How one sequence is to be generated: what the web side resolves and the engine carries out."""

from __future__ import annotations

import math

from msgspec import Struct

from common.errors import InvalidRequest
from common.grammar import Grammar

SEED_LIMIT = 2**64
MAX_CHILDREN = 128
MAX_LOGIT_BIASES = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_STOP_CHARACTERS = 1024
"""Length of a stop string at most; TGI looks at the last 300 characters."""


class Watermark(Struct, frozen=True, omit_defaults=True):
    """A watermark after Kirchenbauer et al. (2023): part of the vocabulary, chosen by the token before, gets a bonus."""

    gamma: float = 0.5
    """Share of the vocabulary that is green (0 < gamma < 1)."""
    delta: float = 2.0
    """What is added to the scores of green tokens (>= 0)."""
    key: int = 15_485_863
    """Whoever knows it can find the watermark (0 <= key < 2**64). The default is TGI's."""

    def check(self) -> None:
        """
        Raises:
            InvalidRequest: names the first field out of range.
        """
        if not 0 < self.gamma < 1:
            raise InvalidRequest("`watermark.gamma` must be > 0.0 and < 1.0")
        if not (math.isfinite(self.delta) and self.delta >= 0):
            raise InvalidRequest("`watermark.delta` must be >= 0.0")
        if not 0 <= self.key < 2**64:
            raise InvalidRequest("`watermark.key` must be between 0 and 2**64 - 1")


class GenerationParameters(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of one sequence, resolved: no nulls, neutral values where a rule is off.

    What each one does to the scores, and in which order: `workers.engine.processors`. Logprobs come from the processed
    scores, as TGI's do.
    """

    max_new_tokens: int
    """Tokens to generate at most, end-of-text included (>= 1)."""
    seed: int
    """Key of the sampling noise (0 <= seed < 2**64); drawn at submission when the caller gave none."""
    sample: bool = False
    """False: the most likely token. True: a draw from the processed distribution."""
    temperature: float = 1.0
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest one are ruled out; 0 is off."""
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    """TGI's: times a token's share of prompt and answer. OpenAI's is `openai_frequency_penalty`."""
    presence_penalty: float = 0.0
    """OpenAI's: subtracted from the scores of tokens generated before."""
    openai_frequency_penalty: float = 0.0
    """OpenAI's `frequency_penalty`: subtracted once for each time a token was generated before."""
    logit_bias: dict[int, float] = {}
    """Added to the scores of these token ids."""
    watermark: Watermark | None = None
    grammar: Grammar | None = None
    """What the answer must match. It ends (end-of-text) where the grammar does, and not before the grammar allows it."""
    stop: list[str] = []
    """Strings that end the sequence once they appear in the generated text; within a grammar as well."""
    stop_token_ids: list[int] = []
    """Ids that end the sequence like a stop string: they count, and their text, if any, is part of the answer."""
    ignore_eos: bool = False
    """End-of-text does not end the sequence. With a grammar: it ends only where the grammar allows nothing else."""
    top_n_tokens: int = 0
    """Alternatives to report for each generated token (ties with the last one are added)."""
    prefill_logprobs: bool = False
    """Report the log probability of each prompt token."""
    prefill_top_n_tokens: int = 0
    """Alternatives to report for each prompt token, where `prefill_logprobs` are."""
    children: int = 1
    """Sequences to generate from the one prompt, each with a seed of its own (`child_seed`)."""

    def child_seed(self, child: int) -> int:
        """Seed of one child; asked for alone, it gives the same sequence. Child 0 has the request's own.

        The noise of seeds this far apart is unrelated: they are states of one splitmix64 stream.
        """
        return (self.seed + child * 0x9E3779B97F4A7C15) % SEED_LIMIT

    def check(self) -> None:
        """Refuse values no engine can carry out, wherever the job came from.

        Raises:
            InvalidRequest: names the first field out of range.
        """
        if self.max_new_tokens < 1:
            raise InvalidRequest("`max_new_tokens` must be strictly positive")
        if not 0 <= self.seed < SEED_LIMIT:
            raise InvalidRequest("`seed` must be between 0 and 2**64 - 1")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InvalidRequest("`temperature` must be strictly positive")
        if self.top_k < 0:
            raise InvalidRequest("`top_k` must be strictly positive")
        if not 0 < self.top_p <= 1:
            raise InvalidRequest("`top_p` must be > 0.0 and <= 1.0")
        if not 0 <= self.min_p <= 1:
            raise InvalidRequest("`min_p` must be >= 0.0 and <= 1.0")
        if not 0 < self.typical_p <= 1:
            raise InvalidRequest("`typical_p` must be > 0.0 and <= 1.0")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise InvalidRequest("`repetition_penalty` must be strictly positive")
        for name in ("frequency_penalty", "presence_penalty", "openai_frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise InvalidRequest(f"`{name}` must be between -2.0 and 2.0")
        if len(self.logit_bias) > MAX_LOGIT_BIASES:
            raise InvalidRequest(f"`logit_bias` takes at most {MAX_LOGIT_BIASES} tokens, given {len(self.logit_bias)}")
        if not all(-100 <= bias <= 100 for bias in self.logit_bias.values()):
            raise InvalidRequest("`logit_bias` must hold values between -100.0 and 100.0")
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"`stop_token_ids` takes at most {MAX_STOP_TOKEN_IDS} ids, given {len(self.stop_token_ids)}"
            )
        if self.watermark is not None:
            self.watermark.check()
        if self.grammar is not None:
            self.grammar.check()
        check_stop_strings(self.stop)
        for name in ("top_n_tokens", "prefill_top_n_tokens"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"`{name}` must be >= 0")
        if not 1 <= self.children <= MAX_CHILDREN:
            raise InvalidRequest(f"`children` must be between 1 and {MAX_CHILDREN}")

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse token ids that the model does not have.

        Raises:
            InvalidRequest: names the field and the first such id.
        """
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token_id in ids:
                if not 0 <= token_id < vocab_size:
                    raise InvalidRequest(
                        f"`{name}` must hold token ids between 0 and {vocab_size - 1}, given {token_id}"
                    )


def check_stop_strings(stop: list[str]) -> None:
    """Refuse stop strings that would end everything at once, or cost more to look for than they are worth.

    Raises:
        InvalidRequest: says which.
    """
    if "" in stop:
        raise InvalidRequest("`stop` must not hold an empty string")
    longest = max(map(len, stop), default=0)
    if longest > MAX_STOP_CHARACTERS:
        raise InvalidRequest(f"`stop` strings have at most {MAX_STOP_CHARACTERS} characters, given {longest}")
