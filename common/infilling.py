"""Prompts for a text between a beginning and an end, in the form the model was trained with."""

from __future__ import annotations

from common.tokenizer import Tokenizer

_FORMS = (
    # StarCoder, Granite
    "<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>",
    "<fim-prefix>{prefix}<fim-suffix>{suffix}<fim-middle>",
    # Qwen, CodeGemma
    "<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>",
    # DeepSeek
    "<\uff5cfim\u2581begin\uff5c>{prefix}<\uff5cfim\u2581hole\uff5c>{suffix}<\uff5cfim\u2581end\uff5c>",
    # Codestral, which hears the end first
    "[SUFFIX]{suffix}[PREFIX]{prefix}",
)


def infilling_prompt(tokenizer: Tokenizer, prefix: str, suffix: str) -> str | None:
    """The prompt whose answer goes between both texts; None when the model has no tokens for it."""
    for form in _FORMS:
        if all(tokenizer.has_token(mark) for mark in form.format(prefix=" ", suffix=" ").split()):
            return form.format(prefix=prefix, suffix=suffix)
    return None
