"""What clients of `/v1/chat/completions` hear: pure functions from token events to chunks and bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from common.protocols.openai_answer import End, Head, Stops, Usage, UsageReport, encode, usage
from common.protocols.openai_chat_choice import ChatChoice, Delta
from common.protocols.openai_logprobs import ChatLogprobs, TokenLogprob
from common.protocols.tool_call_parser import ToolCallParser
from common.tool_format import ToolFormat
from common.wire import Tokens

FinishReason = Literal["stop", "length", "tool_calls"]


class ChunkChoice(Struct, frozen=True, gc=False):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    """Not OpenAI's: what ended the choice, with the finish reason."""


class Chunk(Struct, frozen=True, gc=False):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class Function(Struct, frozen=True):
    name: str
    arguments: str
    """JSON."""


class ToolCall(Struct, frozen=True):
    id: str
    type: Literal["function"]
    function: Function


class Message(Struct, frozen=True):
    role: Literal["assistant"]
    content: str | None
    """None where there are only calls."""
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Choice(Struct, frozen=True):
    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None


class ChatCompletion(Struct, frozen=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage


class ChatAnswer(Struct, frozen=True, kw_only=True):
    """What was asked of one answer, apart from how it is generated."""

    head: Head
    choices: int
    prompt_tokens: int
    stops: Stops
    top_logprobs: int | None = None
    """Alternatives to show with the tokens' log probabilities; None: no log probabilities."""
    tool_format: ToolFormat | None = None
    """How the model writes calls; None where it has nothing to call."""
    call_key: str = ""
    """Makes the ids of calls unlike any others."""
    usage: UsageReport = UsageReport()


class ChatFold:
    """Folds the events of one request, in order, into stream events or the body."""

    def __init__(self, answer: ChatAnswer) -> None:
        self._answer = answer
        self._choices = [ChatChoice(answer.stops, answer.top_logprobs, self._parser(i)) for i in range(answer.choices)]
        self._null_usage: UnsetType | None = None if answer.usage.at_end else UNSET

    @property
    def generated_tokens(self) -> int:
        return sum(choice.generated_tokens for choice in self._choices)

    def stream_events(self, event: Tokens) -> list[bytes]:
        """The JSON of the chunks: the role, one for each token that adds something, the end in one of its own."""
        index = event.child
        choice = self._choices[index]
        running = choice.end is None
        chunks = []
        if not choice.begun:
            # Where there may be calls, content is null until there is some.
            content = None if self._answer.tool_format else ""
            chunks.append(self._chunk(ChunkChoice(index, Delta("assistant", content))))
        for delta, logprob in choice.take(event):
            logprobs = None if logprob is None else ChatLogprobs([logprob])
            chunks.append(self._chunk(ChunkChoice(index, delta, logprobs)))
        if running and choice.end is not None:
            ended = ChunkChoice(index, Delta(), None, _reason(choice, choice.end), choice.end.stop)
            chunks.append(self._chunk(ended))
        if event.ends and self._answer.usage.at_end:
            chunks.append(self._encode([], self._usage()))
        return chunks

    def body(self, events: Sequence[Tokens]) -> bytes:
        """The JSON of the whole answer; the events must hold the finish of every choice."""
        said = [_Said() for _ in self._choices]
        for event in events:
            for delta, logprob in self._choices[event.child].take(event):
                said[event.child].add(delta, logprob)
        head = self._answer.head
        return encode(
            ChatCompletion(
                head.id,
                "chat.completion",
                head.created,
                head.model,
                head.system_fingerprint,
                [self._whole(index, whole) for index, whole in enumerate(said)],
                self._usage(),
            )
        )

    def _whole(self, index: int, said: _Said) -> Choice:
        choice = self._choices[index]
        if choice.end is None:
            raise ValueError("the events end without a finish")
        logprobs = None if self._answer.top_logprobs is None else ChatLogprobs(said.logprobs)
        return Choice(index, said.message(), logprobs, _reason(choice, choice.end), choice.end.stop)

    def _parser(self, choice: int) -> ToolCallParser | None:
        if self._answer.tool_format is None:
            return None
        return ToolCallParser(
            self._answer.tool_format, lambda call: f"call_{self._answer.call_key}{choice:02x}{call:02x}"
        )

    def _usage(self) -> Usage:
        return usage(self._answer.prompt_tokens, self.generated_tokens)

    def _chunk(self, choice: ChunkChoice) -> bytes:
        return self._encode([choice], self._usage() if self._answer.usage.always else self._null_usage)

    def _encode(self, choices: list[ChunkChoice], used: Usage | UnsetType | None) -> bytes:
        head = self._answer.head
        return encode(
            Chunk(head.id, "chat.completion.chunk", head.created, head.model, head.system_fingerprint, choices, used)
        )


class _Said:
    """What the deltas of one choice come to."""

    def __init__(self) -> None:
        self.logprobs: list[TokenLogprob] = []
        self._texts: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []

    def add(self, delta: Delta, logprob: TokenLogprob | None) -> None:
        if logprob is not None:
            self.logprobs.append(logprob)
        if isinstance(delta.content, str):
            self._texts.append(delta.content)
        for call in delta.tool_calls or ():
            function = call.function
            if call.id is not UNSET:
                self._calls.append((call.id, str(function.name), []))
            self._calls[call.index][2].append(function.arguments)

    def message(self) -> Message:
        content = "".join(self._texts)
        calls = [ToolCall(key, "function", Function(name, "".join(pieces))) for key, name, pieces in self._calls]
        return Message("assistant", content if content or not calls else None, None, calls or UNSET)


def _reason(choice: ChatChoice, end: End) -> FinishReason:
    return "tool_calls" if choice.called and end.reason == "stop" else end.reason
