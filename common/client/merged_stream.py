"""The tokens of several jobs as those of one, for requests with more than one prompt."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec

from common.client.timings import Timings
from common.client.token_buffer import UNREAD_FRAMES
from common.client.token_stream import TokenStream
from common.errors import TgqError
from common.wire import Finish, Tokens


class MergedStream:
    """Reads like a `TokenStream` with the children of all its jobs: those of the first job, then the second's, ...

    One job's error ends all, as it does with the children of one job.
    """

    def __init__(self, streams: Sequence[TokenStream]) -> None:
        """
        Args:
            streams: none of them entered yet.
        """
        self.error: TgqError | None = None
        self.finish: Finish | None = None
        self._streams = streams
        self._first_child = []
        self._unfinished = 0
        for stream in streams:
            self._first_child.append(self._unfinished)
            self._unfinished += stream.job.parameters.children
        self._unread: deque[Tokens] = deque()
        self._readers: list[asyncio.Task[None]] = []
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._timings = Timings(submitted=min(stream.timings.submitted for stream in streams))

    @property
    def ended(self) -> bool:
        """Whether nothing more will arrive (there may be unread tokens)."""
        return self.error is not None or self._unfinished == 0

    @property
    def timings(self) -> Timings:
        """From the first job's begin to the last one's end."""
        each = [stream.timings for stream in self._streams]
        merged = self._timings
        merged.queued = _last([timings.queued for timings in each])
        merged.accepted = _first([timings.accepted for timings in each])
        merged.first_token = _first([timings.first_token for timings in each])
        merged.last_token = _last([timings.last_token for timings in each])
        merged.ended = _last([timings.ended for timings in each])
        return merged

    async def __aenter__(self) -> Self:
        try:
            for stream in self._streams:
                await stream.__aenter__()
        except BaseException:
            self.close()
            raise
        self._readers = [asyncio.create_task(self._read(index)) for index in range(len(self._streams))]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Tokens:
        while not self._unread:
            if self.error is not None:
                raise self.error
            if self._unfinished == 0:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        self._taken.set()
        return self._unread.popleft()

    async def ready(self, timeout: float | None = None) -> bool:
        """See `TokenStream.ready`."""
        if not (self._unread or self.ended):
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._arrived.wait()
            except TimeoutError:
                pass
        return bool(self._unread or self.ended)

    def close(self) -> None:
        """Give up what has not ended; never waits, idempotent."""
        for stream in self._streams:
            stream.close()
        for reader in self._readers:
            reader.cancel()

    async def _read(self, index: int) -> None:
        stream, first = self._streams[index], self._first_child[index]
        try:
            async for tokens in stream:
                while len(self._unread) >= UNREAD_FRAMES:
                    # The job's own stream sees to it that its reader is not too slow.
                    self._taken.clear()
                    await self._taken.wait()
                if tokens.finish is not None:
                    self._unfinished -= 1
                    self.finish = tokens.finish
                merged = msgspec.structs.replace(tokens, child=first + tokens.child, unfinished=self._unfinished)
                self._unread.append(merged)
                self._arrived.set()
        except TgqError as error:
            if self.error is None:
                self.error = error
                for other in self._streams:
                    other.close()
            self._arrived.set()


def _first(moments: list[float | None]) -> float | None:
    known = [moment for moment in moments if moment is not None]
    return min(known, default=None)


def _last(moments: list[float | None]) -> float | None:
    """None until there is one of each job."""
    known = [moment for moment in moments if moment is not None]
    return max(known) if len(known) == len(moments) else None
