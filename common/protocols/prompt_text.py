"""A prompt as its answer repeats it: the text, and where in it each token begins."""

from __future__ import annotations

from itertools import accumulate

from msgspec import Struct

from common.tokenizer import Tokenizer


class PromptText(Struct, frozen=True):
    ids: list[int]
    text: str
    starts: list[int]
    """Of each token, in characters; special tokens that were added begin where the one before does."""


def prompt_text(tokenizer: Tokenizer, prompt: str | list[int]) -> PromptText:
    """Tokens of a text, or the text of tokens. CPU-bound.

    Ids that are no usual way to write their text have starts by the lengths of their own texts.
    """
    if isinstance(prompt, str):
        encoding = tokenizer.encode(prompt)
        return PromptText(encoding.ids, prompt, _rising([start for start, _ in encoding.offsets]))
    text = tokenizer.decode(prompt)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    if encoding.ids == prompt:
        return PromptText(prompt, text, _rising([start for start, _ in encoding.offsets]))
    lengths = [len(tokenizer.token_text(token_id)) for token_id in prompt]
    return PromptText(prompt, text, [min(start, len(text)) for start in accumulate(lengths[:-1], initial=0)])


def _rising(starts: list[int]) -> list[int]:
    return list(accumulate(starts, max))
