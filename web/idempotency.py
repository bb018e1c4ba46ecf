"""Calls with an `Idempotency-Key`: however often a client repeats one, it runs once.

The first call runs in a task of its own, so that it outlives its client: for `idempotency_grace` seconds, or as long as
others wait for it. Those others, at any web process, ask Redis until the answer is there. Answers are kept for
`idempotency_seconds`; errors are not, a repeated call runs again then. Streams are not kept: there the header has no
effect, which `x-ignored-parameters` says.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from hashlib import sha256

import structlog
from falcon.asgi import Request
from redis.exceptions import RedisError

from common.background import stop_tasks
from common.errors import IdempotencyConflict, InvalidRequest
from common.idempotency import CallStore, OneCall
from common.settings import Settings
from common.wire import KeptAnswer
from web.disconnect import RequestLifetime
from web.errors import public_error
from web.request_record import RequestRecord

log = structlog.get_logger(__name__)

HEADER = "idempotency-key"
REPLAYED = {"idempotent-replayed": "true"}
_PLAIN = re.compile(r"[\x21-\x7e]{1,255}")
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_CHECK_SECONDS = 0.25


def idempotency_key(request: Request) -> str | None:
    """
    Raises:
        InvalidRequest: the header's value is nothing to tell calls by.
    """
    key: str | None = request.get_header(HEADER)
    if key is not None and not _PLAIN.fullmatch(key):
        raise InvalidRequest(f"`{HEADER}` must have 1 to 255 visible ASCII characters")
    return key


def fingerprint(request: Request, body: bytes) -> str:
    """What makes two requests the same: path and body."""
    return sha256(request.path.encode() + b"\0" + body).hexdigest()


def _record(request: Request) -> RequestRecord | None:
    """Of a generation."""
    record: RequestRecord | None = getattr(request.context, "record", None)
    return record


class _Run:
    """A call that runs in this process."""

    def __init__(self, call: OneCall, held: ExitStack) -> None:
        self.call = call
        self.held = held
        """What its request holds."""
        self.changed = asyncio.Event()
        self.left_at: float | None = None
        """When its client left."""
        self.ended = False

    def leave(self) -> None:
        self.left_at = time.monotonic()
        self.changed.set()

    def end(self) -> None:
        self.ended = True
        self.changed.set()


class Idempotency:
    """The idempotent calls of one web process."""

    def __init__(self, store: CallStore, settings: Settings) -> None:
        self._store = store
        self._grace = settings.idempotency_grace
        self._renew_seconds = settings.lease_seconds / 3
        self._running: set[asyncio.Task[KeptAnswer]] = set()

    async def close(self) -> None:
        """Cancel the calls whose clients have left."""
        await stop_tasks(self._running)

    async def once(self, request: Request, key: str, work: Callable[[], Awaitable[KeptAnswer]]) -> KeptAnswer:
        """The answer `work` makes, or has made for an earlier call with this key.

        Raises:
            IdempotencyConflict: the key came with another request before.
            TgqError: what `work` raises.
            redis.exceptions.RedisError: Redis is away.
        """
        digest = sha256(f"{request.context.tenant}\0{key}".encode()).hexdigest()
        call = OneCall(digest, request.context.fingerprint, secrets.token_hex(16))
        pause = _FIRST_PAUSE
        while (state := await self._store.claim(call)) == "running":
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        if state == "other":
            raise IdempotencyConflict
        if isinstance(state, KeptAnswer):
            if (record := _record(request)) is not None:
                record.replayed()
            return KeptAnswer(state.version, state.headers | REPLAYED, state.body)
        return await self._lead(request, call, work)

    async def _lead(self, request: Request, call: OneCall, work: Callable[[], Awaitable[KeptAnswer]]) -> KeptAnswer:
        run = _Run(call, RequestLifetime.of(request.scope).detach())
        task = asyncio.create_task(self._run(request, run, work))
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            run.leave()
            raise

    async def _run(self, request: Request, run: _Run, work: Callable[[], Awaitable[KeptAnswer]]) -> KeptAnswer:
        with run.held:
            me = asyncio.current_task()
            assert me is not None
            watch = asyncio.create_task(self._watch(run, me))
            answer = None
            try:
                answer = await work()
                return answer
            except Exception as error:
                if (record := _record(request)) is not None:
                    record.failed(public_error(error))  # before it is closed
                raise
            finally:
                run.end()
                await watch  # its last word must not come after ours
                await self._tell(run.call, answer)

    async def _tell(self, call: OneCall, answer: KeptAnswer | None) -> None:
        try:
            await (self._store.forget(call) if answer is None else self._store.keep(call, answer))
        except (RedisError, OSError) as error:
            # Then it is forgotten when its lease is out; the answer itself is none the worse.
            log.warning("idempotent_call_not_kept", error=type(error).__name__)

    async def _watch(self, run: _Run, task: asyncio.Task[KeptAnswer]) -> None:
        """Keep the call's lease; end the call when nobody wants it any more."""
        pause = self._renew_seconds
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await run.changed.wait()
            run.changed.clear()
            if run.ended:
                return
            wanted = False
            with suppress(RedisError, OSError):
                wanted = await self._store.renew(run.call)
            if run.left_at is not None:
                if not wanted and time.monotonic() - run.left_at >= self._grace:
                    task.cancel()
                    return
                pause = min(_CHECK_SECONDS, self._renew_seconds)

    def _ended(self, task: asyncio.Task[KeptAnswer]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # Marks it as seen: its client may be gone.
