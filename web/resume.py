"""Streams that outlive their connection: `x-tgq-resume: true` asks for one, `last-event-id` goes on with it.

The answer's tokens are kept in Redis before they are sent (`common.stream_store`). When the connection is lost the stream
runs on for `resume_seconds`. Whoever sends the same request again, with the same key and `x-request-id` and the id of the
last event it has, to any web process, takes the stream over: the events are made again from the kept tokens, and
the job goes on as after the loss of a worker, whatever became of the process that had it. The last one who comes has it.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

import structlog
from falcon.asgi import Request
from redis.exceptions import RedisError

from common.background import every, stop_tasks
from common.calls.call import Origin
from common.client.generation import GenerationClient
from common.client.token_stream import TokenStream
from common.errors import (
    InvalidRequest,
    NotResumable,
    ResumeConflict,
    StreamGone,
    TgqError,
)
from common.stream_store import StreamStore
from common.wire import WIRE_VERSION, StoredStream, Tokens
from web.deadline import Deadline
from web.disconnect import RequestLifetime
from web.errors import public_error
from web.kept_stream import KeptStream, Resumable
from web.request_record import RequestRecord
from web.running import RunningRequests, request_digest

log = structlog.get_logger(__name__)

RESUME = "x-tgq-resume"
LAST_EVENT = "last-event-id"
_EVENT = re.compile(r"[0-9]{1,12}")


def wants_resume(request: Request) -> bool:
    """
    Raises:
        InvalidRequest: the header's value is neither `true` nor `false`.
    """
    given = request.get_header(RESUME)
    if given not in (None, "true", "false"):
        raise InvalidRequest(f"`{RESUME}` must be `true` or `false`, given {given[:40]!r}")
    return given == "true"


def last_event(request: Request) -> int | None:
    """How many events the caller has.

    Raises:
        NotResumable: no event of ours has such an id.
    """
    given = request.get_header(LAST_EVENT)
    if given is None:
        return None
    if not _EVENT.fullmatch(given):
        raise NotResumable
    return int(given)


class Unread(Protocol):
    """An answer whose client may go."""

    record: RequestRecord

    async def all(self) -> list[Tokens]:
        """Read what is left."""


class Resumption:
    """The resumable streams of one web process."""

    def __init__(self, store: StreamStore, running: RunningRequests, client: GenerationClient) -> None:
        self._store = store
        self._client = client
        self._running = running
        self._settings = client.settings
        self._owned: dict[str, str] = {}
        """Owner and digest of those under way."""
        self._left: set[asyncio.Task[None]] = set()
        """Those whose clients have gone."""
        self._renewing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._renewing = asyncio.create_task(every(self._settings.resume_seconds / 4, self._renew, "resumable streams"))

    async def stop(self) -> None:
        """Let go of those whose clients have gone; they may be resumed elsewhere."""
        await stop_tasks([*self._left, *([self._renewing] if self._renewing is not None else [])])

    async def plan(self, request: Request) -> Resumable | None:
        """What the request's headers say; makes a stream that is resumed ours.

        Raises:
            InvalidRequest: the headers are wrong.
            NotResumable: there was no such stream of this caller.
            StreamGone: there is none any more.
            ResumeConflict: it was another request's.
            redis.exceptions.RedisError: Redis is away.
        """
        wanted, events = wants_resume(request), last_event(request)
        if events is None and not wanted:
            return None
        digest = request_digest(request.context.tenant, request.context.request_id)
        owner, fingerprint = secrets.token_hex(16), request.context.fingerprint
        deadline: Deadline = request.context.deadline
        if events is None:
            return Resumable(digest, owner, fingerprint, deadline.unix)
        stored = await self._store.find(digest)
        if stored is None:
            raise await self._missing(digest)
        if stored.fingerprint != fingerprint:
            raise ResumeConflict
        claimed = await self._store.claim(digest, owner, stored)
        if claimed is None:
            raise await self._missing(digest)
        await self._running.take_over(digest, owner)
        plan = Resumable(digest, owner, fingerprint, stored.deadline, stored, claimed.attempt, claimed.tokens, events)
        if not plan.finished:
            deadline.not_after(stored.deadline)
        return plan

    async def _missing(self, digest: str) -> TgqError:
        return StreamGone() if await self._store.known(digest) else NotResumable()

    async def drop(self, digest: str, *, orphan: bool) -> bool:
        """Let nobody resume a caller's stream any more; whether there was one.

        Args:
            orphan: it is nobody's, so its job is cancelled here.

        Raises:
            redis.exceptions.RedisError: Redis is away.
        """
        stored = await self._store.find(digest)
        await self._store.forget(digest)
        if stored is not None and orphan:
            self._client.cancel(stored.job)
        return stored is not None

    async def keep(self, stream: TokenStream, plan: Resumable, origin: Origin, held: ExitStack) -> KeptStream:
        """
        Args:
            stream: not entered yet.

        Raises:
            redis.exceptions.RedisError: Redis is away.
        """
        stored = plan.stored
        if stored is None:
            job = stream.job
            seed = job.parameters.seed
            stored = StoredStream(
                WIRE_VERSION, plan.fingerprint, job.id, seed, origin.created, origin.key, plan.deadline
            )
            await self._store.begin(plan.digest, plan.owner, stored)
        else:
            stream.resume(plan.tokens)
        self._owned[plan.owner] = plan.digest
        held.callback(self._owned.pop, plan.owner, None)
        return KeptStream(stream, self._store, plan, stored, self._settings)

    def outlive(self, lifetime: RequestLifetime, plan: Resumable) -> Outliving:
        """From here on what the request holds is held for its stream, for a while also without its client."""
        return Outliving(lifetime, plan, self._left_alone)

    def _left_alone(self, generation: Unread, plan: Resumable, held: ExitStack) -> None:
        task = asyncio.create_task(self._finish(generation, plan, held))
        self._left.add(task)
        task.add_done_callback(self._left.discard)

    async def _finish(self, generation: Unread, plan: Resumable, held: ExitStack) -> None:
        with held:
            try:
                async with asyncio.timeout(self._settings.resume_seconds):
                    await generation.all()
            except TimeoutError:
                await self._forget(plan)
            except Exception as error:  # the task's boundary; nobody is there to be told
                told = public_error(error)
                if type(told) is TgqError:
                    log.error("unexpected error in a stream", exc_info=error)
                generation.record.failed(told)

    async def _forget(self, plan: Resumable) -> None:
        try:
            await self._store.forget(plan.digest, plan.owner)
        except (RedisError, OSError) as error:
            log.warning("stream_not_forgotten", error=type(error).__name__)  # it goes by itself

    async def _renew(self) -> None:
        for owner, digest in list(self._owned.items()):
            await self._store.renew(digest, owner)


class Outliving:
    """What a resumable request holds: let go when its connection ends, or some time later."""

    def __init__(
        self,
        lifetime: RequestLifetime,
        plan: Resumable,
        left_alone: Callable[[Unread, Resumable, ExitStack], None],
    ) -> None:
        self.generation: Unread | None = None
        """Once there is one; a client that leaves before has nothing that could be resumed."""
        self._plan = plan
        self._left_alone = left_alone
        self._lifetime = lifetime
        connection = lifetime.stack
        self.held = lifetime.detach()
        connection.callback(self._connection_ended)

    def _connection_ended(self) -> None:
        if self.generation is not None and self._lifetime.gone is not None:
            self._left_alone(self.generation, self._plan, self.held)
        else:
            self.held.close()
