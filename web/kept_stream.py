"""A stream that is kept in Redis while it is read, so that another connection can go on with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from msgspec import Struct
from redis.exceptions import RedisError

from common.calls.call import Origin
from common.client.timings import Timings
from common.client.token_stream import TokenStream
from common.errors import IncompleteGeneration, RequestCancelled, StreamTakenOver, TgqError
from common.settings import Settings
from common.stream_store import StreamStore
from common.wire import StoredStream, Tokens, encode_msgpack

_RETRY_SECONDS = 0.25


class Resumable(Struct, frozen=True):
    """A stream that may be resumed, before it is queued."""

    digest: str
    owner: str
    fingerprint: str
    deadline: float
    """Unix seconds."""
    stored: StoredStream | None = None
    """Of one that is resumed."""
    attempt: int = 1
    tokens: Sequence[Tokens] = ()
    """What is known of its answer."""
    events: int = 0
    """How many its caller has."""

    @property
    def finished(self) -> bool:
        """Whether the whole answer is known."""
        return bool(self.tokens) and self.tokens[-1].ends

    @property
    def origin(self) -> Origin:
        return Origin.new() if self.stored is None else Origin(self.stored.created, self.stored.key)


class KeptStream:
    """Of one connection. Reads like the stream it wraps, and keeps what it reads.

    A reader that is cancelled loses nothing: the next one begins with what it did not get.
    """

    def __init__(
        self, stream: TokenStream, store: StreamStore, plan: Resumable, stored: StoredStream, settings: Settings
    ) -> None:
        self._stream = stream
        self._store = store
        self._plan = plan
        self._stored = stored
        self._patience = settings.stall_timeout
        self._portions = [encode_msgpack(tokens) for tokens in plan.tokens]
        self._kept = len(self._portions)
        self._pending: Tokens | None = None

    @property
    def error(self) -> TgqError | None:
        return self._stream.error

    @property
    def timings(self) -> Timings:
        return self._stream.timings

    @property
    def ended(self) -> bool:
        return self._pending is None and self._stream.ended

    def close(self, error: TgqError | None = None) -> None:
        self._stream.close(error)

    async def ready(self, timeout: float | None = None) -> bool:
        return self._pending is not None or await self._stream.ready(timeout)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Tokens:
        if self._pending is None:
            self._pending = await anext(self._stream)
            self._portions.append(encode_msgpack(self._pending))
        await self._keep()
        tokens, self._pending = self._pending, None
        return tokens

    async def _keep(self) -> None:
        """Append what is not in Redis yet; waits for Redis as long as for a silent worker.

        Raises:
            StreamTakenOver: somebody else has the stream.
            IncompleteGeneration: Redis was away for too long.
        """
        plan, create = self._plan, False
        give_up_at = time.monotonic() + self._patience
        while True:
            try:
                answer = await self._store.append(
                    plan.digest, plan.owner, self._stored, self._kept, self._portions[self._kept :], create=create
                )
            except (RedisError, OSError):
                if time.monotonic() > give_up_at:
                    raise self._closed(
                        IncompleteGeneration("Redis has been away for too long", reason="redis")
                    ) from None
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if answer == "taken":
                raise self._closed(StreamTakenOver())
            if answer == "stored":
                self._kept = len(self._portions)
                return
            if isinstance(self._stream.error, RequestCancelled):
                raise self._stream.error
            self._kept, create = 0, True

    def _closed(self, error: TgqError) -> TgqError:
        self._stream.close(error)
        return error
