"""What Redis knows of batches, as their owners see them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import redis.asyncio

from common.batches import scripts
from common.batches.objects import BatchList, BatchObject, BatchRequest, Part
from common.batches.pages import ids_after
from common.batches.transitions import CANCELLABLE, changed
from common.errors import BadRequest, ServiceUnavailable, UnknownBatch, UnknownFile
from common.keys import Keys
from common.settings import Settings

_WRITES = 20
"""Times a change is made anew because somebody else changed the batch meanwhile; there is one runner, and who cancels."""

Change = Callable[[BatchObject], BatchObject]


class LeaseLost(Exception):
    """Another runner has the batch, or nobody has, for it is gone: nothing was written, and nothing may be any more."""


class BatchRecords:
    """All methods raise `redis.exceptions.RedisError` when Redis is away, known within `redis_timeout`."""

    def __init__(self, redis_client: redis.asyncio.Redis, keys: Keys, settings: Settings) -> None:
        self._redis = redis_client
        self._keys = keys
        self._settings = settings
        self._create = redis_client.register_script(scripts.CREATE_BATCH)
        self._write = redis_client.register_script(scripts.WRITE_BATCH)

    async def create(self, tenant: str, batch: BatchObject, request: BatchRequest) -> BatchObject:
        """A new batch, which any runner may claim from here on.

        Raises:
            UnknownFile: its input has just been deleted.
        """
        keys = self._keys
        names = [
            keys.batch(batch.id),
            keys.batches(tenant),
            keys.waiting_batches(tenant),
            keys.batch_turns,
            keys.file(batch.input_file_id),
            keys.file_users(batch.input_file_id),
        ]
        words, more = msgspec.json.encode(batch), msgspec.json.encode(request)
        args: list[str | int | bytes] = [
            *(batch.id, tenant, words, more),
            *(self._forgotten_at(batch), keys.batch("")),
        ]
        if not await self._create(keys=names, args=args):
            raise UnknownFile(batch.input_file_id)
        return batch

    async def batch(self, tenant: str, batch_id: str) -> BatchObject:
        """
        Raises:
            UnknownBatch: the caller has none of this id.
        """
        owner, words = await self._redis.hmget(self._keys.batch(batch_id), ["tenant", "object"])
        if words is None or owner != tenant.encode():
            raise UnknownBatch(batch_id)
        return msgspec.json.decode(words, type=BatchObject)

    async def batches(self, tenant: str, *, after: str | None = None, limit: int = 20) -> BatchList:
        """A page of the caller's batches, the newest first."""
        found: list[BatchObject] = []
        async for ids in ids_after(self._redis, self._keys.batches(tenant), after, "desc", limit + 1):
            async with self._redis.pipeline(transaction=False) as pipeline:
                for one in ids:
                    pipeline.hget(self._keys.batch(one), "object")
                records = await pipeline.execute()
            found += [msgspec.json.decode(words, type=BatchObject) for words in records if words is not None]
            if len(found) > limit:
                break
        page = found[:limit]
        return BatchList(
            data=page,
            first_id=page[0].id if page else None,
            last_id=page[-1].id if page else None,
            has_more=len(found) > limit,
        )

    async def cancel(self, tenant: str, batch_id: str) -> BatchObject:
        """Stop a batch: its runner, or the next one, ends it. What is stopped already is told as it is.

        Raises:
            UnknownBatch: the caller has none of this id.
            BadRequest: it cannot be stopped any more.
        """
        await self.batch(tenant, batch_id)

        def cancelled(batch: BatchObject) -> BatchObject:
            if batch.status in ("cancelling", "cancelled"):
                return batch
            if batch.status not in CANCELLABLE:
                raise BadRequest(f"Cannot cancel a batch with status '{batch.status}'")
            return changed(batch, int(time.time()), status="cancelling")

        try:
            return await self._change(tenant, batch_id, cancelled)
        except LeaseLost:
            raise UnknownBatch(batch_id) from None

    async def _change(
        self, tenant: str, batch_id: str, change: Change, token: str = "", parts: Sequence[Part] = ()
    ) -> BatchObject:
        """Read, change and write a batch as if at once.

        Args:
            token: of the lease that allows it; nothing: its owner does.
            parts: registered with the change, and once only; when they are already, nothing is changed.

        Raises:
            LeaseLost: the token is not that of its lease any more, or it is gone.
            ServiceUnavailable: somebody else changes it all the time.
        """
        keys = self._keys
        for _ in range(_WRITES):
            words, revision = await self._redis.hmget(keys.batch(batch_id), ["object", "revision"])
            if words is None or revision is None:
                raise LeaseLost
            old = msgspec.json.decode(words, type=BatchObject)
            new = change(old)
            if new is old and not token:
                return old
            names = [
                keys.batch(batch_id),
                keys.batch_parts(batch_id),
                keys.held_batches,
                keys.file_users(old.input_file_id),
            ]
            args: list[str | int | bytes] = [
                token,
                revision,
                msgspec.json.encode(new),
                batch_id,
                entry(tenant, batch_id),
                self._forgotten_at(new),
                0 if new.open else 1,
            ]
            for part in parts:
                args += [part.name, msgspec.json.encode(part)]
            answer = await self._write(keys=names, args=args)
            if answer == b"written":
                return new
            if answer == b"registered":
                return old
            if answer != b"changed":
                raise LeaseLost
        raise ServiceUnavailable

    def _forgotten_at(self, batch: BatchObject) -> int:
        """Unix seconds at which its record goes."""
        now = int(time.time())
        open_until = max(now, batch.expires_at or now) if batch.open else now
        return open_until + int(self._settings.batch_retention)


def entry(tenant: str, batch_id: str) -> str:
    """A batch among those of all callers."""
    return f"{tenant}/{batch_id}"
