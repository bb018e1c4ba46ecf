"""What TGI clients hear: pure functions from token events to stream events and bodies, keys in TGI's order.

`token.text` is what a token adds to the text; `generated_text` joins the texts of the tokens that are not special.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from common.errors import TgqError
from common.protocols.best_of import mean_logprob
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


class BestOfSequence(Struct, frozen=True):
    generated_text: str
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | UnsetType = UNSET


class Details(Struct, frozen=True):
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    best_of_sequences: list[BestOfSequence] | UnsetType = UNSET
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


def error_body(error: TgqError) -> bytes:
    return encode(ErrorResponse(error.message, error.error_type))


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
    sibling_seeds: list[int | None] = []
    """Those of the other sequences with `best_of`."""
    input_length: int
    """Prompt tokens after truncation."""


class AnswerFold:
    """Folds the events of one sequence, in order, into stream events or the final body."""

    def __init__(self, answer: Answer, *, in_array: bool = False) -> None:
        """
        Args:
            in_array: the body is an array of the one answer, as `POST /` has it.
        """
        self._answer = answer
        self._in_array = in_array
        self._texts: list[str] = [answer.full_text_of]
        self.generated_tokens = 0
        """Of the answer, once `response` has made it."""

    def stream_events(self, event: Tokens) -> list[bytes]:
        """The JSON of `events`."""
        return [encode(told) for told in self.events(event)]

    def body(self, events: Iterable[Tokens]) -> bytes:
        """The JSON of `response`."""
        body = encode(self.response(events))
        return b"[" + body + b"]" if self._in_array else body

    def events(self, event: Tokens) -> list[StreamEvent]:
        """One stream event per token; the last one of a finished sequence carries text and details."""
        tokens, finish, top_tokens = event.tokens, event.finish, self._answer.top_tokens
        self._texts += [token.text for token in tokens if not token.special]
        events = [
            StreamEvent(
                index,
                Token(token.id, token.text, token.logprob, token.special),
                _top(token.top) if top_tokens else UNSET,
                None,
                None,
            )
            for index, token in enumerate(tokens, event.offset + 1)
        ]
        if events and finish is not None:
            details = self._stream_details(finish) if self._answer.details else None
            events[-1] = replace(events[-1], generated_text=self._text, details=details)
        return events

    def response(self, events: Iterable[Tokens]) -> GenerateResponse:
        """The whole answer; the events must hold the finish of every child.

        Of several children (`best_of`) the one whose tokens have the highest mean log probability is the answer, the
        first of equals; the others come with the details, in their order.
        """
        children = [_Child() for _ in range(1 + len(self._answer.sibling_seeds))]
        for event in events:
            children[event.child].add(event)
        if any(child.finish is None for child in children):
            raise ValueError("the events end without a finish")
        best = max(range(len(children)), key=lambda index: children[index].mean_logprob)
        text = self._answer.full_text_of + children[best].text
        self.generated_tokens = children[best].generated_tokens
        if not (self._answer.details or self._answer.prefill):
            return GenerateResponse(text)
        # The prompt's tokens are the same for all and come with one.
        prefill = next((child.finish.prefill for child in children if child.finish and child.finish.prefill), [])
        sequences = [self._sequence(index, child, prefill) for index, child in enumerate(children)]
        return GenerateResponse(text, self._details(sequences, best))

    @property
    def _text(self) -> str:
        return "".join(self._texts)

    def _stream_details(self, finish: Finish) -> StreamDetails:
        return StreamDetails(finish.reason, finish.generated_tokens, self._answer.seed, self._answer.input_length)

    def _sequence(self, index: int, child: _Child, prefill: list[WirePrefillToken]) -> BestOfSequence:
        assert child.finish is not None
        return BestOfSequence(
            generated_text=self._answer.full_text_of + child.text,
            finish_reason=child.finish.reason,
            generated_tokens=child.finish.generated_tokens,
            seed=[self._answer.seed, *self._answer.sibling_seeds][index],
            prefill=[_prefill(token) for token in prefill] if self._answer.prefill else [],
            tokens=[Token(token.id, token.text, token.logprob, token.special) for token in child.tokens],
            top_tokens=[_top(token.top) for token in child.tokens] if self._answer.top_tokens else UNSET,
        )

    @staticmethod
    def _details(sequences: list[BestOfSequence], best: int) -> Details:
        winner = sequences[best]
        others = sequences[:best] + sequences[best + 1 :]
        return Details(
            finish_reason=winner.finish_reason,
            generated_tokens=winner.generated_tokens,
            seed=winner.seed,
            prefill=winner.prefill,
            tokens=winner.tokens,
            best_of_sequences=others or UNSET,
            top_tokens=winner.top_tokens,
        )


class _Child:
    """One sequence, whole."""

    def __init__(self) -> None:
        self.tokens: list[WireToken] = []
        self.finish: Finish | None = None

    def add(self, event: Tokens) -> None:
        self.tokens.extend(event.tokens)
        self.finish = event.finish or self.finish

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens if not token.special)

    @property
    def generated_tokens(self) -> int:
        return self.finish.generated_tokens if self.finish is not None else len(self.tokens)

    @property
    def mean_logprob(self) -> float:
        return mean_logprob(self.tokens)


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
