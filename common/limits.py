"""How long prompts and answers may be, once settings and model are known."""

from __future__ import annotations

from dataclasses import dataclass

from common.settings import Settings

DEFAULT_MAX_TOTAL_TOKENS = 4096
"""Upper bound of the default, so that a model with a very long context does not reserve memory nobody asked for."""


@dataclass(frozen=True, slots=True)
class Limits:
    max_input_tokens: int
    """Longest prompt."""
    max_total_tokens: int
    """Longest prompt plus answer."""


def resolve_limits(settings: Settings, context: int) -> Limits:
    """Settings where they are given, else what the model and the engine's room allow.

    Args:
        context: positions the model was made for.

    Raises:
        ValueError: the limits do not fit each other or the model; names the settings and both numbers.
    """
    room = settings.max_batch_total_tokens
    total = settings.max_total_tokens or min(context, DEFAULT_MAX_TOTAL_TOKENS, room or DEFAULT_MAX_TOTAL_TOKENS)
    if total > context:
        raise ValueError(f"MAX_TOTAL_TOKENS ({total}) is more than the model's context of {context} tokens")
    if room is not None and total > room:
        raise ValueError(f"MAX_TOTAL_TOKENS ({total}) is more than MAX_BATCH_TOTAL_TOKENS ({room})")
    inputs = settings.max_input_tokens or total - 1
    if inputs >= total:
        raise ValueError(f"MAX_INPUT_TOKENS ({inputs}) must be less than the {total} tokens of prompt plus answer")
    return Limits(max_input_tokens=inputs, max_total_tokens=total)
