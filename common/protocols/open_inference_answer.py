"""What clients of the Open Inference Protocol hear: pure functions from token events to stream events and bodies.

`details` may hold more than the protocol names; here it is what TGI's details hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from common.errors import TgqError
from common.protocols.tgi_answer import Answer, AnswerFold, BestOfSequence, PrefillToken, Token
from common.protocols.tgi_answer import Details as TgiDetails
from common.wire import FinishReason, Tokens


class ErrorResponse(Struct, frozen=True):
    error: str


class Details(Struct, frozen=True, kw_only=True):
    text_output: str | UnsetType = UNSET
    """Of the other sequences with `best_of`."""
    finish_reason: FinishReason
    logprobs: list[Token]
    generated_tokens: int
    seed: int | None
    """The seed used; null when nothing was drawn."""
    prefill: list[PrefillToken] | UnsetType = UNSET
    top_tokens: list[list[Token]] | UnsetType = UNSET
    best_of_sequences: list[Details] | UnsetType = UNSET


class GenerateResponse(Struct, frozen=True):
    text_output: str
    model_name: str
    model_version: str
    details: Details | UnsetType = UNSET


class StreamDetails(Struct, frozen=True, gc=False):
    finish_reason: FinishReason | None
    """Null before the last token: the protocol wants the key on every event, and no sequence knows its end before."""
    token: Token
    top_tokens: list[Token] | UnsetType = UNSET
    generated_tokens: int | UnsetType = UNSET
    """This and what follows come with the last token."""
    seed: int | UnsetType | None = UNSET
    input_length: int | UnsetType = UNSET


class StreamResponse(Struct, frozen=True, gc=False):
    text_output: str
    """What this token adds; all events' texts joined are the whole answer's."""
    model_name: str
    model_version: str
    details: StreamDetails | UnsetType = UNSET


class ServerMetadata(Struct, frozen=True):
    name: str
    version: str
    extensions: list[str]


class ServerLive(Struct, frozen=True):
    live: bool


class ServerReady(Struct, frozen=True):
    ready: bool


class ModelList(Struct, frozen=True):
    models: list[str]


class Tensor(Struct, frozen=True):
    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(Struct, frozen=True):
    name: str
    versions: list[str]
    platform: str
    inputs: list[Tensor]
    outputs: list[Tensor]


class ModelReady(Struct, frozen=True):
    name: str
    ready: bool


encode = msgspec.json.Encoder().encode


def error_body(error: TgqError) -> bytes:
    return encode(ErrorResponse(error.message))


def model_metadata(name: str, versions: list[str]) -> ModelMetadata:
    return ModelMetadata(
        name,
        versions,
        platform="tgq",
        inputs=[Tensor("text_input", "BYTES", [1])],
        outputs=[Tensor("text_output", "BYTES", [1])],
    )


class OpenInferenceFold:
    """Folds the events of one request, in order, into stream events or the final body."""

    def __init__(self, answer: Answer, *, details: bool, model_name: str, model_version: str) -> None:
        """
        Args:
            details: they were asked for.
            model_name, model_version: as the answer names them.
        """
        self._answer = answer
        self._whole = AnswerFold(answer)
        self._details = details
        self._model = (model_name, model_version)
        self._before = answer.full_text_of

    @property
    def generated_tokens(self) -> int:
        """Of the answer, once `body` has made it."""
        return self._whole.generated_tokens

    def stream_events(self, event: Tokens) -> list[bytes]:
        """The JSON of one stream event for each token."""
        return [encode(told) for told in self.events(event)]

    def body(self, events: Sequence[Tokens]) -> bytes:
        """The JSON of the whole answer."""
        return encode(self.response(events))

    def events(self, event: Tokens) -> list[StreamResponse]:
        last = len(event.tokens) - 1 if event.finish is not None else -1
        told = []
        for position, token in enumerate(event.tokens):
            text = self._before + ("" if token.special else token.text)
            self._before = ""
            details: StreamDetails | UnsetType = UNSET
            if self._details:
                finish = event.finish if position == last else None
                details = StreamDetails(
                    None if finish is None else finish.reason,
                    Token(token.id, token.text, token.logprob, token.special),
                    [Token(top.id, top.text, top.logprob, top.special) for top in token.top]
                    if self._answer.top_tokens
                    else UNSET,
                    *(
                        ()
                        if finish is None
                        else (finish.generated_tokens, self._answer.seed, self._answer.input_length)
                    ),
                )
            told.append(StreamResponse(text, *self._model, details))
        return told

    def response(self, events: Sequence[Tokens]) -> GenerateResponse:
        """The whole answer; the events must hold the finish of every child."""
        whole = self._whole.response(events)
        return GenerateResponse(
            whole.generated_text, *self._model, UNSET if whole.details is UNSET else self._told(whole.details)
        )

    def _told(self, sequence: TgiDetails | BestOfSequence) -> Details:
        others = UNSET if isinstance(sequence, BestOfSequence) else sequence.best_of_sequences
        return Details(
            text_output=sequence.generated_text if isinstance(sequence, BestOfSequence) else UNSET,
            finish_reason=sequence.finish_reason,
            logprobs=sequence.tokens,
            generated_tokens=sequence.generated_tokens,
            seed=sequence.seed,
            prefill=sequence.prefill if self._answer.prefill else UNSET,
            top_tokens=sequence.top_tokens,
            best_of_sequences=UNSET if others is UNSET else [self._told(other) for other in others],
        )
