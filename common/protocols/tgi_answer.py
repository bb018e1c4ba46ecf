"""What TGI clients hear: pure functions from token events to stream events and bodies, keys in TGI's order.

`token.text` is what a token adds to the text; `generated_text` joins the texts of the tokens that are not special.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import msgspec
from msgspec import UNSET, Struct, UnsetType

from common.tokenizer import Encoding
from common.wire import Finish, FinishReason, Tokens, TopToken
from common.wire import PrefillToken as WirePrefillToken
from common.wire import Token as WireToken


class Token(Struct, frozen=True, gc=False):
    id: int
    text: str
    logprob: float | None
    special: bool


class PrefillToken(Struct, frozen=True):
    id: int
    text: str
    logprob: float | None


class StreamDetails(Struct, frozen=True, gc=False):
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamEvent(Struct, frozen=True, gc=False):
    index: int
    """Position of the token in the answer, from 1."""
    token: Token
    top_tokens: list[Token] | UnsetType
    generated_text: str | None
    details: StreamDetails | None


class Details(Struct, frozen=True):
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | UnsetType = UNSET


class GenerateResponse(Struct, frozen=True):
    generated_text: str
    details: Details | UnsetType = UNSET


class SimpleToken(Struct, frozen=True):
    id: int
    text: str
    start: int
    """Byte offset into the UTF-8 text."""
    stop: int


class ErrorResponse(Struct, frozen=True):
    error: str
    error_type: str


encode = msgspec.json.Encoder().encode


class Answer(Struct, frozen=True, kw_only=True):
    """What was asked of one answer, apart from how it is generated."""

    details: bool
    """Details were asked for."""
    prefill: bool = False
    """Prompt tokens were asked for, which also brings details."""
    top_tokens: bool = False
    full_text_of: str = ""
    """Put before the generated text (`return_full_text`)."""
    seed: int | None
    """The seed used; None when nothing was drawn."""
    input_length: int
    """Prompt tokens after truncation."""


class AnswerFold:
    """Folds the events of one sequence, in order, into stream events or the final body."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._texts: list[str] = [answer.full_text_of]

    def stream_events(self, event: Tokens) -> list[StreamEvent]:
        """One stream event per token; the last one of a finished sequence carries text and details."""
        last = len(event.tokens) - 1 if event.finish is not None else -1
        events = []
        for position, token in enumerate(event.tokens):
            self._take(token)
            finish = event.finish if position == last else None
            events.append(
                StreamEvent(
                    index=event.offset + position + 1,
                    token=Token(token.id, token.text, token.logprob, token.special),
                    top_tokens=_top(token.top) if self._answer.top_tokens else UNSET,
                    generated_text=None if finish is None else self._text,
                    details=self._stream_details(finish) if finish is not None and self._answer.details else None,
                )
            )
        return events

    def body(self, events: Iterable[Tokens]) -> GenerateResponse:
        """The whole answer; the last event must hold the finish."""
        tokens: list[WireToken] = []
        finish: Finish | None = None
        for event in events:
            tokens.extend(event.tokens)
            finish = event.finish
        if finish is None:
            raise ValueError("the events end without a finish")
        for token in tokens:
            self._take(token)
        asked = self._answer.details or self._answer.prefill
        return GenerateResponse(self._text, self._details(tokens, finish) if asked else UNSET)

    def _take(self, token: WireToken) -> None:
        if not token.special:
            self._texts.append(token.text)

    @property
    def _text(self) -> str:
        return "".join(self._texts)

    def _stream_details(self, finish: Finish) -> StreamDetails:
        return StreamDetails(finish.reason, finish.generated_tokens, self._answer.seed, self._answer.input_length)

    def _details(self, tokens: list[WireToken], finish: Finish) -> Details:
        return Details(
            finish_reason=finish.reason,
            generated_tokens=finish.generated_tokens,
            seed=self._answer.seed,
            prefill=[_prefill(token) for token in finish.prefill] if self._answer.prefill else [],
            tokens=[Token(token.id, token.text, token.logprob, token.special) for token in tokens],
            top_tokens=[_top(token.top) for token in tokens] if self._answer.top_tokens else UNSET,
        )


def simple_tokens(text: str, encoding: Encoding) -> list[SimpleToken]:
    """Tokens of a text with byte offsets, from an encoding with character offsets."""
    # One pass over the text, and none over the usual one, where characters are bytes.
    ends = range(len(text) + 1) if text.isascii() else [0, *accumulate(len(character.encode()) for character in text)]
    return [
        SimpleToken(token, text[start:stop], ends[start], ends[stop])
        for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
    ]


def _top(tokens: list[TopToken]) -> list[Token]:
    return [Token(token.id, token.text, token.logprob, token.special) for token in tokens]


def _prefill(token: WirePrefillToken) -> PrefillToken:
    return PrefillToken(token.id, token.text, token.logprob)
