"""How one sequence is to be generated: what the web side resolves and the engine carries out."""

from __future__ import annotations

import math

from msgspec import Struct

from common.errors import InvalidRequest

SEED_LIMIT = 2**64


class GenerationParameters(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of one sequence, resolved: no nulls, neutral values where a rule is off.

    Processors are applied in TGI's order: repetition penalty, frequency penalty, temperature, top-k, top-p, typical-p.
    Logprobs come from the processed scores, as TGI's do.
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
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    stop: list[str] = []
    """Strings that end the sequence once they appear in the generated text."""
    ignore_eos: bool = False
    top_n_tokens: int = 0
    """Alternatives to report for each generated token (ties with the last one are added)."""
    prefill_logprobs: bool = False
    """Report the log probability of each prompt token."""

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
        if not 0 < self.typical_p <= 1:
            raise InvalidRequest("`typical_p` must be > 0.0 and <= 1.0")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise InvalidRequest("`repetition_penalty` must be strictly positive")
        if not -2 <= self.frequency_penalty <= 2:
            raise InvalidRequest("`frequency_penalty` must be between -2.0 and 2.0")
        if any(not stop for stop in self.stop):
            raise InvalidRequest("`stop` must not hold an empty string")
        if self.top_n_tokens < 0:
            raise InvalidRequest("`top_n_tokens` must be >= 0")
