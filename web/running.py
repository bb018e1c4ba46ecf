"""Requests that can be cancelled by id, at whichever web process they are.

Nothing is written for a request; who wants one cancelled asks all processes, until each that has requests under way has
answered: one whose subscription is interrupted does not hear the first question. One that has been away from Redis for
longer than its lease of permits is not waited for. A request is known by a digest of its caller and its id, so no caller
reaches another's. Two requests of a caller may have the same id: they are cancelled together.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Protocol

import msgspec
import structlog
from falcon.asgi import Request

from common.admission import Admission
from common.client.generation import GenerationClient
from common.errors import RequestCancelled, ServiceUnavailable, StreamTakenOver, TgqError
from common.wire import CancelAnswer, CancelRequest, StreamTaken, decode_web_control, encode_msgpack

log = structlog.get_logger(__name__)

ASK_SECONDS = 0.25
"""Between two questions, when somebody has not answered."""


def request_digest(tenant: str, request_id: str) -> str:
    """Keeps callers apart, and their words out of Redis' names."""
    return sha256(f"{tenant}\0{request_id}".encode()).hexdigest()


class Closable(Protocol):
    def close(self, error: TgqError | None = None) -> None: ...


class RunningRequest:
    """From its admission to its end."""

    def __init__(self, owner: str = "") -> None:
        self.owner = owner
        """Of a resumable stream: its name in `StreamStore`."""
        self._stream: Closable | None = None
        self._error: TgqError | None = None

    def queue(self, stream: Closable) -> None:
        """From here on there is something to close.

        Raises:
            TgqError: the request has been ended already.
        """
        if self._error is not None:
            raise self._error
        self._stream = stream

    def end(self, error: TgqError) -> None:
        self._error = error
        if self._stream is not None:
            self._stream.close(error)


class RunningRequests:
    """Those of this web process."""

    def __init__(self, client: GenerationClient, admission: Admission) -> None:
        self._client = client
        self._admission = admission
        self._running: defaultdict[str, set[RunningRequest]] = defaultdict(set)
        self._questions: dict[str, asyncio.Queue[CancelAnswer]] = {}
        self._channel = client.keys.web_of(client.process_id)
        client.listen(client.keys.web, self._heard)
        client.listen(self._channel, self._heard)

    def enter(self, request: Request, running: RunningRequest) -> Callable[[], None]:
        """Returns what must be called when the request is over."""
        digest = request_digest(request.context.tenant, request.context.request_id)
        self._running[digest].add(running)

        def leave() -> None:
            self._running[digest].discard(running)
            if not self._running[digest]:
                del self._running[digest]

        return leave

    async def cancel(self, digest: str) -> bool:
        """Cancel the requests of one caller and id, at all web processes; whether there were any.

        Raises:
            ServiceUnavailable: not every process has answered in `redis_timeout`, and none of the others had it.
            redis.exceptions.RedisError: Redis is away.
        """
        question, answers = secrets.token_hex(8), asyncio.Queue[CancelAnswer]()
        self._questions[question] = answers
        message = encode_msgpack(CancelRequest(digest, self._channel, question))
        answered: set[str] = set()
        try:
            async with asyncio.timeout(self._client.settings.redis_timeout):
                while True:
                    # Before they are asked: who has let go of its last request is no process with requests any more.
                    asked = await self._admission.processes()
                    await self._client.redis.publish(self._client.keys.web, message)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(ASK_SECONDS):
                            while not asked <= answered:
                                answer = await answers.get()
                                if answer.found:
                                    return True
                                answered.add(answer.process)
                            return False
        except TimeoutError:
            raise ServiceUnavailable("Not every web node has answered") from None
        finally:
            del self._questions[question]

    async def take_over(self, digest: str, owner: str) -> None:
        """Let all others let go of a stream that is now `owner`'s.

        Raises:
            redis.exceptions.RedisError: Redis is away.
        """
        await self._client.redis.publish(self._client.keys.web, encode_msgpack(StreamTaken(digest, owner)))

    def _heard(self, data: bytes) -> None:
        try:
            message = decode_web_control(data)
        except msgspec.DecodeError as error:
            log.error("unreadable message of another web process", error=str(error))
            return
        match message:
            case CancelRequest():
                found = list(self._running.get(message.digest, ()))
                for running in found:
                    running.end(RequestCancelled())
                self._client.tell(message.asker, CancelAnswer(message.question, len(found), self._client.process_id))
            case CancelAnswer():
                if (answers := self._questions.get(message.question)) is not None:
                    answers.put_nowait(message)
            case StreamTaken():
                for running in list(self._running.get(message.digest, ())):
                    if running.owner and running.owner != message.owner:
                        running.end(StreamTakenOver())
