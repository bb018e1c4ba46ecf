"""The three APIs: what is asked, and what an event of the answer's stream means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from ops.bench.serve.prompts import Prompt
from ops.bench.serve.record import BAD_ANSWER, STREAM_ERROR, Record


@dataclass(frozen=True)
class Shape:
    """What all requests of a run have in common."""

    temperature: float = 0.0
    ignore_eos: bool = False
    continuous_usage: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


class Api(Protocol):
    """One way to ask for a streamed answer."""

    name: str
    path: str
    takes_model: bool

    def body(self, prompt: Prompt, tokens: int, model: str, shape: Shape) -> dict[str, Any]:
        """The request for `tokens` tokens at most."""

    def take(self, data: bytes, now: float, record: Record) -> None:
        """Note what the data of an event that came at `now` tells."""


class _Struct(msgspec.Struct, gc=False):
    """What events hold is looked at once, for each token: fields that are not needed are skipped undecoded."""


class _Usage(_Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Delta(_Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(_Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(_Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


class _Details(_Struct):
    generated_tokens: int | None = None
    input_length: int | None = None


class _Token(_Struct):
    id: int


class _TokenEvent(_Struct):
    token: _Token | None = None
    generated_text: str | None = None
    details: _Details | None = None
    error: Any = None


_chunks = msgspec.json.Decoder(_Chunk)
_token_events = msgspec.json.Decoder(_TokenEvent)


class _OpenAI:
    takes_model = True

    def take(self, data: bytes, now: float, record: Record) -> None:
        if data == b"[DONE]":
            record.finish_at = now
            return
        try:
            chunk = _chunks.decode(data)
        except msgspec.MsgspecError as error:
            record.fail(BAD_ANSWER, f"an event that is no chunk: {error}")
            return
        if chunk.error is not None:
            record.fail(STREAM_ERROR, _words(chunk.error))
        usage = chunk.usage
        if usage is not None:
            record.prompt_tokens, record.output_tokens = usage.prompt_tokens, usage.completion_tokens
        for choice in chunk.choices or ():
            if self._has_output(choice):
                record.output_at.append(now)
                if usage is not None and usage.completion_tokens is not None:
                    record.counts.append(usage.completion_tokens)
            if choice.finish_reason is not None:
                record.finish_at = now

    def _has_output(self, choice: _Choice) -> bool:
        raise NotImplementedError

    def _common(self, tokens: int, model: str, shape: Shape) -> dict[str, Any]:
        options = {"include_usage": True} | ({"continuous_usage_stats": True} if shape.continuous_usage else {})
        return {
            "model": model,
            "max_tokens": tokens,
            "temperature": shape.temperature,
            **({"ignore_eos": True} if shape.ignore_eos else {}),
            "stream": True,
            "stream_options": options,
        }


class OpenAIChat(_OpenAI):
    """`/v1/chat/completions`."""

    name = "openai-chat"
    path = "/v1/chat/completions"

    def body(self, prompt: Prompt, tokens: int, model: str, shape: Shape) -> dict[str, Any]:
        messages = prompt.messages or [{"role": "user", "content": prompt.text}]
        return self._common(tokens, model, shape) | {"messages": messages} | prompt.fields | shape.extra

    def _has_output(self, choice: _Choice) -> bool:
        delta = choice.delta
        return delta is not None and bool(
            delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls
        )


class OpenAICompletions(_OpenAI):
    """`/v1/completions`."""

    name = "openai-completions"
    path = "/v1/completions"

    def body(self, prompt: Prompt, tokens: int, model: str, shape: Shape) -> dict[str, Any]:
        return self._common(tokens, model, shape) | {"prompt": prompt.text} | prompt.fields | shape.extra

    def _has_output(self, choice: _Choice) -> bool:
        return bool(choice.text)


class Tgi:
    """`/generate_stream`: every event is one token."""

    name = "tgi"
    path = "/generate_stream"
    takes_model = False

    def body(self, prompt: Prompt, tokens: int, model: str, shape: Shape) -> dict[str, Any]:
        parameters: dict[str, Any] = {"max_new_tokens": tokens, "details": True, "do_sample": shape.temperature > 0}
        if shape.temperature > 0:
            parameters["temperature"] = shape.temperature
        if shape.ignore_eos:
            parameters["ignore_eos"] = True
        return {"inputs": prompt.text, "parameters": parameters | shape.extra}

    def take(self, data: bytes, now: float, record: Record) -> None:
        try:
            event = _token_events.decode(data)
        except msgspec.MsgspecError as error:
            record.fail(BAD_ANSWER, f"an event that is no token: {error}")
            return
        if event.error is not None:
            record.fail(STREAM_ERROR, _words(event.error))
        if event.token is not None:
            record.output_at.append(now)
        if event.generated_text is not None:
            record.finish_at = now
        if event.details is not None:
            record.prompt_tokens, record.output_tokens = event.details.input_length, event.details.generated_tokens


APIS: dict[str, Api] = {api.name: api for api in (OpenAIChat(), OpenAICompletions(), Tgi())}


def _words(error: Any) -> str:
    """What an error says, in either form: a text, or an object with a message."""
    return str(error.get("message", error) if isinstance(error, dict) else error)
