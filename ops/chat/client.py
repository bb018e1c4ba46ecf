"""Chat with any service that speaks OpenAI's API."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import httpx2 as httpx
import msgspec
from msgspec import Struct

from ops.chat.conversation import Turn
from ops.service_client import ServiceClient, ServiceError, error_words

SILENT_SECONDS = 600.0
"""A service may be silent for so long, as long as it lets requests wait and more."""
USUAL_LIMIT = 512
"""Tokens of an answer when nobody says: a small model that does not find its end goes on for minutes."""
_END = "[DONE]"
_NATURAL_ENDS = ("stop", "eos_token", "stop_sequence")
_REFUSALS = (httpx.codes.BAD_REQUEST, httpx.codes.UNPROCESSABLE_CONTENT)


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


class _Delta(Struct):
    content: str | None = None


class _Choice(Struct):
    delta: _Delta
    finish_reason: str | None = None


class _Chunk(Struct):
    choices: list[_Choice] = []
    error: Any = None


class ChatClient(ServiceClient):
    """Every method raises `ServiceError`.

    Args:
        parameters: fields of every request: `temperature`, `max_tokens` and so on. Without `max_tokens` an answer has
            `USUAL_LIMIT` or, where the service refuses that, what the service lets it have, as with 0.
    """

    def __init__(self, url: str, api_key: str | None, parameters: Mapping[str, Any]) -> None:
        super().__init__(url, api_key, seconds=SILENT_SECONDS)
        self._parameters = {name: value for name, value in parameters.items() if (name, value) != ("max_tokens", 0)}
        self._usual = {} if "max_tokens" in parameters else {"max_tokens": USUAL_LIMIT}
        self.cut_off: str | None = None
        """Why the last answer ended before its natural end, if it did: `length`."""

    def first_model(self) -> str | None:
        """The first model the service lists, None where it lists none or has no such list."""
        try:
            models = self._ask("GET", "/v1/models", _Models).data
        except ServiceError as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise
        return models[0].id if models else None

    def answer(self, messages: Sequence[Turn], model: str | None) -> Generator[str]:
        """The answer, piece by piece. Closing the generator closes the connection, which cancels the request."""
        body = {**self._parameters, **({"model": model} if model else {}), "messages": messages, "stream": True}
        try:
            yield from self._streamed_answer(body | self._usual)
        except ServiceError as error:
            if not self._usual or error.status not in _REFUSALS:
                raise
            # The context may have no room for that many, and some models want the limit by another name.
            yield from self._streamed_answer(body)

    def _streamed_answer(self, body: Mapping[str, Any]) -> Generator[str]:
        self.cut_off = None
        ended = None
        with self._streamed("POST", "/v1/chat/completions", json=body) as response:
            for event in httpx.EventSource(response):
                if event.data == _END:
                    continue  # The stream ends behind it, and its connection can be used again.
                chunk = msgspec.json.decode(event.data, type=_Chunk)
                if chunk.error is not None:
                    raise ServiceError(f"the answer broke off: {error_words(event.data.encode()) or chunk.error}")
                for choice in chunk.choices[:1]:
                    ended = choice.finish_reason or ended
                    if choice.delta.content:
                        yield choice.delta.content
        if ended is None:
            raise ServiceError("the answer broke off: the service closed the stream before its end", passing=True)
        self.cut_off = None if ended in _NATURAL_ENDS else ended
