"""Requests with the status they get, and their answers taken apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

import httpx

from tests.contract.contracts import Operation

Node = Literal["usual", "flat", "full", "alone"]
"""Of which service: as it comes; with TGI's errors on `/v1`; the same with all places taken; without a worker."""

MODEL, VERSION = "scripted", "1"


@dataclass(frozen=True)
class Exchange:
    """A request and the status of its answer."""

    method: str
    path: str
    """As the contracts write it."""
    status: int = 200
    body: Any = None
    """JSON, or bytes as they are."""
    node: Node = "usual"
    accept: str | None = None
    fails_late: bool = False
    """The stream ends with an error."""

    @property
    def address(self) -> str:
        return self.path.replace("{MODEL_NAME}", MODEL).replace("{MODEL_VERSION}", VERSION)

    def speaks(self, contract: str) -> bool:
        """Whether the node's errors are those of the contract: on `/v1` they are either TGI's or OpenAI's."""
        if not (self.status >= 400 or self.fails_late) or not self.path.startswith("/v1"):
            return True
        return contract.startswith("tgi") == (self.node != "usual")


@dataclass(frozen=True)
class Answer:
    exchange: Exchange
    response: httpx.Response
    media: str
    """Empty when there is no body."""
    values: list[Any] = field(default_factory=list)
    """The body, or every event's data."""
    done: bool = False
    """The stream ended with `[DONE]`."""

    @property
    def streamed(self) -> bool:
        return self.media == "text/event-stream"

    def of(self, operation: Operation) -> bool:
        exchange = self.exchange
        return (operation.method, operation.path) == (exchange.method, exchange.path) and exchange.speaks(
            operation.contract
        )


class Nodes:
    """The services that requests are sent to."""

    def __init__(self, urls: Mapping[Node, str]) -> None:
        self._urls = urls
        self._client = httpx.Client(timeout=60, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def exchanged(self, exchange: Exchange) -> Answer:
        """Send the request; the answer must have its status."""
        headers = {"content-type": "application/json"} if exchange.method == "POST" else {}
        if exchange.accept is not None:
            headers["accept"] = exchange.accept
        content = exchange.body if isinstance(exchange.body, bytes) else json.dumps(exchange.body).encode()
        response = self._client.request(
            exchange.method,
            self._urls[exchange.node] + exchange.address,
            content=content if exchange.method == "POST" else None,
            headers=headers,
        )
        assert response.status_code == exchange.status, f"{exchange}: {response.status_code} {response.text[:500]}"
        return taken_apart(exchange, response)


def taken_apart(exchange: Exchange, response: httpx.Response) -> Answer:
    media = str(response.headers.get("content-type", "")).partition(";")[0]
    if not response.content:
        return Answer(exchange, response, "")
    if media == "text/event-stream":
        values, done = events(response.text)
        return Answer(exchange, response, media, values, done)
    value = response.json() if media == "application/json" else response.text
    return Answer(exchange, response, media, [value])


def events(text: str) -> tuple[list[Any], bool]:
    """The data of a stream's events, which are one line each, and whether `[DONE]` ended it."""
    assert text.endswith("\n\n")
    frames = [frame for frame in text.removesuffix("\n\n").split("\n\n") if not frame.startswith(":")]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames), frames
    lines = [frame.removeprefix("data: ") for frame in frames]
    done = lines[-1:] == ["[DONE]"]
    return [json.loads(line) for line in (lines[:-1] if done else lines)], done
