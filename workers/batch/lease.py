"""Keeps a batch's lease while work is done under it."""

from __future__ import annotations

import asyncio

import structlog
from redis.exceptions import RedisError

from common.batches.store import BatchStore, Claim

log = structlog.get_logger(__name__)

_RENEWALS = 4
"""In the time of one lease."""


async def keep_lease(store: BatchStore, claim: Claim) -> None:
    """Renew until cancelled. While Redis is away nobody knows whose the lease is: what is written under it is checked there.

    Raises:
        LeaseLost: another runner has the batch.
    """
    while True:
        await asyncio.sleep(claim.seconds / _RENEWALS)
        try:
            await store.renew(claim)
        except RedisError as error:
            log.warning("batch_lease_not_renewed", batch=claim.batch.id, reason=type(error).__name__)
