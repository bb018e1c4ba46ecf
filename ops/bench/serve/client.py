"""The client of one server: connections that are used again, and what becomes of each request."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

import msgspec

from ops.bench.serve.apis import Api
from ops.bench.serve.connection import Answer, BadHttp, Connection, Lost
from ops.bench.serve.events import EventSplitter
from ops.bench.serve.record import BAD_ANSWER, BROKEN, CONNECT, NO_OUTPUT, TIMEOUT, Record, http_failure
from ops.bench.serve.target import Target

IDLE_SECONDS = 4.0
"""A connection that has waited longer may be closed by the server at any moment: it is not used again."""


class Client:
    """Sends requests to one server; closed by `async with`.

    Args:
        timeout: seconds from sending a request to the end of its answer.
    """

    def __init__(self, target: Target, api: Api, timeout: float) -> None:
        self._target, self._api, self._timeout = target, api, timeout
        self._head = target.head()
        self._idle: list[tuple[Connection, float]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection, _ in self._idle:
            connection.close()

    async def send(self, body: bytes, record: Record) -> None:
        """Send a request and note in `record` what comes; failures are noted, never raised."""
        request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._exchange(request, record)
        except TimeoutError:
            record.fail(TIMEOUT, f"no whole answer within {self._timeout:g} s")
        except OSError as error:
            record.fail(CONNECT, str(error))
        except Lost as error:
            record.fail(BROKEN, str(error))
        except BadHttp as error:
            record.fail(BAD_ANSWER, str(error))
        else:
            self._judge(answer, record)

    async def _exchange(self, request: bytes, record: Record) -> Answer:
        events, take = EventSplitter(), self._api.take

        def on_body(part: bytes, now: float) -> None:
            for data in events.feed(part):
                take(data, now, record)

        while True:
            connection = self._unused() or await self._connect()
            used = connection.used
            try:
                answer = await connection.post(request, on_body)
            except Lost as lost:
                if used and not lost.answered:
                    # The server closed it for being idle, while the request was on its way: nobody has read that one.
                    continue
                raise
            except asyncio.CancelledError:
                connection.close()
                raise
            if connection.reusable:
                self._idle.append((connection, time.perf_counter()))
            return answer

    def _unused(self) -> Connection | None:
        """The connection that was used last."""
        while self._idle:
            connection, since = self._idle.pop()
            if connection.reusable and time.perf_counter() - since < IDLE_SECONDS:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, self._target.host, self._target.port, ssl=self._target.tls
        )
        return connection

    def _judge(self, answer: Answer, record: Record) -> None:
        """What an answer that came whole was worth."""
        if answer.status != 200:
            record.fail(http_failure(answer.status), _words(bytes(answer.refusal)))
        elif not answer.streams:
            kind = answer.headers.get("content-type", "none")
            record.fail(BAD_ANSWER, f"an answer of type {kind} instead of a stream of events")
        elif not record.finish_at:
            record.fail(BROKEN, "the stream ended without its last event")
        elif not record.output_at:
            record.fail(NO_OUTPUT, "the stream ended without a token")


def _words(body: bytes) -> str:
    """What a refusal says, in any server's form."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body.decode(errors="replace")
    error = value.get("error", value.get("message")) if isinstance(value, dict) else value
    return str(error.get("message", error) if isinstance(error, dict) else error)
