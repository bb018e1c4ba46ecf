"""A batch's progress as server-sent events: the batch as it is, and again whenever it is another, up to its end.

Redis is asked, rather than listened to: a batch changes once a second at most, and whatever happens to Redis meanwhile, the
next event is right.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import msgspec
import structlog
from redis.exceptions import RedisError

from common.batches.objects import BatchObject
from common.errors import IncompleteGeneration, TgqError
from common.protocols.dialects import ErrorForm
from web import sse
from web.services import Services

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.5


async def progress(services: Services, tenant: str, batch: BatchObject, form: ErrorForm) -> AsyncGenerator[bytes]:
    """Ends early when this web process stops: clients connect again.

    Args:
        batch: as it is.
        form: of an error, which is the last event if it comes to one.
    """
    settings = services.settings
    number = 1
    yield sse.frame(msgspec.json.encode(batch), number)
    said_at = heard_at = time.monotonic()
    while batch.open and not services.drain.begun:
        await asyncio.sleep(POLL_SECONDS)
        now = time.monotonic()
        try:
            found = await services.batches.batch(tenant, batch.id)
            heard_at = now
        except (RedisError, OSError):
            if now - heard_at > settings.stall_timeout:
                yield sse.frame(form(IncompleteGeneration("Redis has been away for too long", reason="redis")), number)
                return
            found = batch
        except TgqError as error:
            yield sse.frame(form(error), number)
            return
        if found != batch:
            batch, number, said_at = found, number + 1, now
            yield sse.frame(msgspec.json.encode(batch), number)
        elif settings.keepalive_seconds and now - said_at >= settings.keepalive_seconds:
            said_at = now
            yield sse.COMMENT
