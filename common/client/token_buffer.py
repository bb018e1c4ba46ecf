"""Between the frames that arrive and the one who reads them."""

from __future__ import annotations

import asyncio
from collections import deque

from common.wire import Tokens

UNREAD_FRAMES = 1024
"""Frames a reader may be behind ..."""
SLOW_READER_SECONDS = 1.0
"""... once it has taken nothing for this long; a burst after an interruption is not the reader's fault."""


class TokenBuffer:
    """A bounded queue with one reader, who takes what has come together."""

    __slots__ = ("_unread", "_unread_since", "_waiter")

    def __init__(self) -> None:
        self._unread: deque[Tokens] = deque()
        self._unread_since = 0.0
        self._waiter: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        return bool(self._unread)

    def put(self, tokens: Tokens, now: float) -> bool:
        """Append; False, and everything is dropped, when the reader is too slow."""
        if not self._unread:
            self._unread_since = now
        elif len(self._unread) >= UNREAD_FRAMES and now - self._unread_since > SLOW_READER_SECONDS:
            self._unread.clear()
            return False
        self._unread.append(tokens)
        return True

    def take(self) -> Tokens:
        """Everything unread of one child that is in line, merged; there must be something."""
        first = last = self._unread.popleft()
        if not self._unread or self._unread[0].child != first.child:
            return first
        tokens = list(first.tokens)
        while self._unread and self._unread[0].child == first.child:
            last = self._unread.popleft()
            tokens.extend(last.tokens)
        return Tokens(first.offset, tokens, last.finish, first.child, last.unfinished)

    async def wait(self) -> None:
        """Wait until `wake` is called."""
        if self._waiter is not None:
            raise RuntimeError("a token stream has one reader at a time")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
