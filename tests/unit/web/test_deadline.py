"""Time limits of requests, without a service."""

from __future__ import annotations

import asyncio

import pytest
from falcon.asgi import Request
from falcon.testing import create_asgi_req

from common.errors import DeadlineExceeded
from common.settings import Settings
from web.deadline import Deadline


def request(timeout: str | None = None) -> Request:
    return create_asgi_req(headers={} if timeout is None else {"x-request-timeout": timeout})


@pytest.mark.parametrize(("given", "seconds"), [(None, 50.0), ("7", 7.0), ("7.25", 7.25), (" 7 ", 7.0), ("60", 50.0)])
def test_the_earlier_limit_counts(given: str | None, seconds: float) -> None:
    remaining = Deadline.of(request(given), Settings.of(request_timeout=50.0)).remaining()
    assert seconds - 5.0 < remaining <= seconds


async def test_what_takes_too_long_is_cut() -> None:
    deadline = Deadline(0.01)
    with pytest.raises(DeadlineExceeded) as raised:
        async with deadline.bounding():
            await asyncio.Event().wait()
    assert raised.value.reason == "total"
    with pytest.raises(DeadlineExceeded):
        deadline.remaining()


async def test_another_timeout_is_no_deadline() -> None:
    with pytest.raises(TimeoutError):
        async with Deadline(60.0).bounding():
            raise TimeoutError


async def test_a_cancellation_stays_one() -> None:
    async def wait() -> None:
        async with Deadline(60.0).bounding():
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
