"""Files and batches in Redis, and who runs which batch.

A runner holds a batch under a lease with a token. Every write of its progress is checked against the token where it is made, in
Redis: a runner that stood still for longer than its lease finds that it may write nothing any more, whatever it has done
meanwhile. Only results that are registered so count.
"""

from __future__ import annotations

import math
import secrets
import time
from typing import Any

import msgspec
import redis.asyncio
from msgspec import Struct

from common.batches import scripts
from common.batches.batch_records import BatchRecords, LeaseLost, entry
from common.batches.file_records import FileRecords
from common.batches.objects import BatchObject, BatchRequest, BatchUsage, Counts, Part
from common.batches.transitions import changed
from common.keys import Keys
from common.settings import Settings

__all__ = ["BatchStore", "Claim", "LeaseLost"]


class Claim(Struct, frozen=True, kw_only=True):
    """A batch that this runner holds."""

    tenant: str
    batch: BatchObject
    """As it was when it was claimed."""
    request: BatchRequest
    token: str
    seconds: float
    """The lease's length; it is to be renewed in less."""


class BatchStore(FileRecords, BatchRecords):
    """All methods raise `redis.exceptions.RedisError` when Redis is away, known within `redis_timeout`; those that write may
    then have been carried out or not, and may be repeated."""

    def __init__(self, redis_client: redis.asyncio.Redis, keys: Keys, settings: Settings) -> None:
        FileRecords.__init__(self, redis_client, keys, settings)
        BatchRecords.__init__(self, redis_client, keys, settings)
        self._claim = redis_client.register_script(scripts.CLAIM_BATCH)
        self._renew = redis_client.register_script(scripts.RENEW_LEASE)
        self._release = redis_client.register_script(scripts.RELEASE_LEASE)

    async def claim(self, runner_id: str, seconds: float) -> Claim | None:
        """Take a batch that nobody holds: callers in turn, and of each the oldest.

        Args:
            seconds: length of the lease.
        """
        keys, token = self._keys, f"{runner_id}:{secrets.token_hex(8)}"
        args: list[str | int] = [keys.batch(""), keys.waiting_batches(""), token, _milliseconds(seconds)]
        found = await self._claim(keys=[keys.batch_turns, keys.held_batches], args=args)
        if found is None:
            return None
        tenant, words, request = found
        return Claim(
            tenant=tenant.decode(),
            batch=msgspec.json.decode(words, type=BatchObject),
            request=msgspec.json.decode(request, type=BatchRequest),
            token=token,
            seconds=seconds,
        )

    async def renew(self, claim: Claim) -> None:
        """
        Raises:
            LeaseLost: it is not ours any more.
        """
        keys, batch_id, tenant = self._keys, claim.batch.id, claim.tenant
        names = [keys.batch(batch_id), keys.held_batches, keys.waiting_batches(tenant)]
        args: list[str | int] = [claim.token, entry(tenant, batch_id), batch_id, _milliseconds(claim.seconds)]
        if not await self._renew(keys=names, args=args):
            raise LeaseLost

    async def release(self, claim: Claim) -> None:
        """Whoever asks next may have it, at once. Does nothing when it is not ours any more, or has ended."""
        keys, batch_id, tenant = self._keys, claim.batch.id, claim.tenant
        names = [keys.batch(batch_id), keys.held_batches, keys.waiting_batches(tenant), keys.batch_turns]
        await self._release(keys=names, args=[claim.token, entry(tenant, batch_id), batch_id, tenant])

    async def update(self, claim: Claim, **changes: Any) -> BatchObject:
        """Change fields of the batch; a new status notes its time, and the end of a batch ends its lease and forgets its parts.

        Raises:
            LeaseLost: it is not ours any more.
            IllegalTransition: it has another status by now (its owner has cancelled it), which does not become this one.
        """
        return await self._change(
            claim.tenant, claim.batch.id, lambda batch: changed(batch, int(time.time()), **changes), claim.token
        )

    async def current(self, claim: Claim) -> BatchObject:
        """The batch as it is now.

        Raises:
            UnknownBatch: it is gone.
        """
        return await self.batch(claim.tenant, claim.batch.id)

    async def register_part(
        self, claim: Claim, *parts: Part, completed: int = 0, failed: int = 0, usage: BatchUsage | None = None
    ) -> BatchObject:
        """From here on the lines in these objects are done: the counts say so with them. Repeating it changes nothing.

        Args:
            completed: how many of the lines succeeded.
            failed: how many did not.
            usage: tokens of these lines alone.

        Raises:
            LeaseLost: it is not ours any more; the objects are nobody's.
        """

        def counted(batch: BatchObject) -> BatchObject:
            counts = batch.request_counts
            total = batch.usage if usage is None else (batch.usage or BatchUsage()) + usage
            return msgspec.structs.replace(
                batch,
                request_counts=Counts(counts.total, counts.completed + completed, counts.failed + failed),
                usage=total,
            )

        return await self._change(claim.tenant, claim.batch.id, counted, claim.token, parts)

    async def parts(self, claim: Claim) -> list[Part]:
        """All that are registered, in the order of their names."""
        found = await self._redis.hgetall(self._keys.batch_parts(claim.batch.id))
        return [msgspec.json.decode(found[name], type=Part) for name in sorted(found)]


def _milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1000)
