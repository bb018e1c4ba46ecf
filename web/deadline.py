"""When a request must be finished: `x-request-timeout`, within the service's own `request_timeout`."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from falcon.asgi import Request

from common.errors import DeadlineExceeded, InvalidRequest
from common.settings import Settings

HEADER = "x-request-timeout"
LONGEST_SECONDS = 86_400.0
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


class Deadline:
    """Counted from when the request had arrived."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    @classmethod
    def of(cls, request: Request, settings: Settings) -> Deadline:
        """The earlier one of the caller's and the service's.

        Raises:
            InvalidRequest: the header is no number of seconds.
        """
        given = request.get_header(HEADER)
        if given is None:
            return cls(settings.request_timeout)
        seconds = float(given) if _DECIMAL.fullmatch(given.strip()) else math.nan
        if not 0.0 < seconds <= LONGEST_SECONDS:
            raise InvalidRequest(
                f"`{HEADER}` must be a number of seconds above 0 and at most {LONGEST_SECONDS:.0f}, given {given[:40]!r}"
            )
        return cls(min(seconds, settings.request_timeout))

    @property
    def unix(self) -> float:
        """In Unix seconds."""
        return time.time() + self._at - time.monotonic()

    def not_after(self, unix: float) -> None:
        """The request goes on with one that had to be finished by then."""
        self._at = min(self._at, time.monotonic() + unix - time.time())

    def remaining(self) -> float:
        """Seconds that are left.

        Raises:
            DeadlineExceeded: none are.
        """
        seconds = self._at - time.monotonic()
        if seconds <= 0.0:
            raise _exceeded()
        return seconds

    @asynccontextmanager
    async def bounding(self) -> AsyncIterator[None]:
        """Cancels what it encloses when the time is over.

        Raises:
            DeadlineExceeded: it was.
        """
        clock = asyncio.timeout(self._at - time.monotonic())
        try:
            async with clock:
                yield
        except TimeoutError:
            if not clock.expired():
                raise
            raise _exceeded() from None


def _exceeded() -> DeadlineExceeded:
    return DeadlineExceeded("The request was not finished in time", reason="total")
