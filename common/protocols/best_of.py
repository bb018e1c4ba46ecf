"""How sequences for one prompt are ranked."""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.wire import Token


def mean_logprob(tokens: Sequence[Token]) -> float:
    """Mean log probability of a sequence, end-of-text included, as TGI ranks them; of none, and of impossible tokens, -inf."""
    logprobs = [-math.inf if token.logprob is None else token.logprob for token in tokens]
    return math.fsum(logprobs) / len(logprobs) if logprobs else -math.inf
