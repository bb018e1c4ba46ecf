"""Log probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from common.protocols.openai_answer import NO_LOGPROB
from common.wire import PrefillToken, Token, TopToken

# -- chat


class TopLogprob(Struct, frozen=True, gc=False):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct, frozen=True, gc=False):
    token: str
    """What the token adds to the text; a token that ends within a character or a possible stop string adds nothing yet."""
    logprob: float
    bytes: list[int]
    """Of `token` in UTF-8."""
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True, gc=False):
    content: list[TokenLogprob]
    refusal: None = None


def chat_logprob(token: Token, top: int) -> TokenLogprob:
    """
    Args:
        top: alternatives to show at most.
    """
    return TokenLogprob(
        token.text,
        _number(token.logprob),
        list(token.text.encode()),
        [TopLogprob(best.text, _number(best.logprob), list(best.text.encode())) for best in token.top[:top]],
    )


# -- completions


class CompletionLogprobs(Struct, frozen=True):
    """Four lists of one length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """None for the first token of the prompt."""
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    """Where each token begins in the choice's text, in characters."""


def completion_logprobs(tokens: Sequence[Token | PrefillToken], offsets: list[int], top: int) -> CompletionLogprobs:
    """
    Args:
        top: alternatives to show at most, beside the token itself.
    """
    return CompletionLogprobs(
        [token.text for token in tokens],
        [token.logprob for token in tokens],
        [None if token.logprob is None else _best(token, token.logprob, token.top[:top]) for token in tokens],
        offsets,
    )


def _best(token: Token | PrefillToken, logprob: float, top: list[TopToken]) -> dict[str, float]:
    best: dict[str, float] = {}
    for candidate in top:
        # Of several tokens with one text (bytes of a character, say) the likeliest is shown.
        text = token.text if candidate.id == token.id else candidate.text
        best.setdefault(text, _number(candidate.logprob))
    best.setdefault(token.text, logprob)
    return best


def _number(logprob: float | None) -> float:
    return NO_LOGPROB if logprob is None else logprob
