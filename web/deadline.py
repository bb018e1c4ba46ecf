"""When a request must be finished: `x-request-timeout`, within the service's own `request_timeout`."""

from __future__ import annotations

import asyncio
import math
import re
import time
from types import TracebackType

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

    def bounding(self) -> _Bound:
        """Cancels what it encloses (`async with`) when the time is over.

        Raises:
            DeadlineExceeded: it was.
        """
        return _Bound(self._at - time.monotonic())


class _Bound:
    """`asyncio.timeout` with the error of this service; a class, for every request passes here."""

    __slots__ = ("_clock",)

    def __init__(self, seconds: float) -> None:
        self._clock = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._clock.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._clock.__aexit__(kind, error, trace)
        except TimeoutError:
            raise _exceeded() from None


def _exceeded() -> DeadlineExceeded:
    return DeadlineExceeded("The request was not finished in time", reason="total")
