"""One choice of a chat answer: generated tokens in, what they add to the message out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from common.protocols.openai_answer import End, Stops
from common.protocols.openai_logprobs import TokenLogprob, chat_logprob
from common.protocols.tool_call_parser import ArgumentsPiece, CallStarted, Content, ToolCallParser, ToolEvent
from common.wire import Tokens


class FunctionDelta(Struct, frozen=True, gc=False):
    name: str | UnsetType
    arguments: str


class ToolCallDelta(Struct, frozen=True, gc=False):
    index: int
    id: str | UnsetType
    """With the first delta of a call only, as are type and name."""
    type: Literal["function"] | UnsetType
    function: FunctionDelta


class Delta(Struct, frozen=True, gc=False):
    """What a chunk adds to a choice's message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChoice:
    """Folds the events of one child, in order."""

    def __init__(self, stops: Stops, top_logprobs: int | None, parser: ToolCallParser | None) -> None:
        """
        Args:
            top_logprobs: alternatives to show; None: no log probabilities.
            parser: finds calls; None where there is nothing to call.
        """
        self.begun = False
        self.end: End | None = None
        self.generated_tokens = 0
        self._stops = stops
        self._top = top_logprobs
        self._parser = parser

    @property
    def called(self) -> bool:
        return self._parser is not None and self._parser.called

    def take(self, event: Tokens) -> Iterator[tuple[Delta, TokenLogprob | None]]:
        """What the tokens of an event add.

        Every token comes once where log probabilities are wanted, otherwise only those that add something. A choice may be
        told to be over once more, with the end of its request.
        """
        if self.end is not None:
            return
        self.begun = True
        texts, end = self._stops.texts(event)
        for token, text in zip(event.tokens, texts, strict=True):
            self.generated_tokens += 1
            logprob = None if self._top is None else chat_logprob(token, self._top)
            if self._parser is None:
                if text or logprob is not None:
                    yield Delta(UNSET, text), logprob
                continue
            deltas = _deltas(self._parser.feed(token.text if token.special else text, special=token.special))
            if logprob is not None and not deltas:
                deltas = [Delta()]
            for delta in deltas:
                yield delta, logprob
                logprob = None
        if event.finish is not None:
            if self._parser is not None:
                for delta in _deltas(self._parser.end()):
                    yield delta, None
            self.generated_tokens = event.finish.generated_tokens
            self.end = end


def _deltas(events: list[ToolEvent]) -> list[Delta]:
    deltas = []
    for event in events:
        match event:
            case Content(text):
                deltas.append(Delta(UNSET, text))
            case CallStarted(index, id, name):
                deltas.append(Delta(UNSET, UNSET, [ToolCallDelta(index, id, "function", FunctionDelta(name, ""))]))
            case ArgumentsPiece(index, text):
                deltas.append(Delta(UNSET, UNSET, [ToolCallDelta(index, UNSET, UNSET, FunctionDelta(UNSET, text))]))
    return deltas
