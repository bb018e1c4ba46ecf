"""What Redis knows of files; their bytes are in storage (`common.batches.storage`).

A file's bytes are announced before they are written and struck off after they are gone, so that whoever dies on the way leaves
nothing that nobody ever looks at again (`common.batches.removal`).
"""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec
import redis.asyncio
from msgspec import Struct

from common.batches import scripts
from common.batches.objects import FileList, FileObject
from common.batches.pages import ids_after
from common.errors import BadRequest, UnknownFile
from common.keys import Keys
from common.settings import Settings

Order = Literal["asc", "desc"]

_ANNOUNCED_SECONDS = 86_400
"""An upload takes less."""
_IN_USE_SECONDS = 60
"""After which an expired file is looked at again that a batch still reads."""
_RECORD_SECONDS = 86_400
"""A record outlives its file by so much, and is as good as gone."""


class _StoredFile(Struct, frozen=True):
    tenant: str
    file: FileObject


class FileRecords:
    """All methods raise `redis.exceptions.RedisError` when Redis is away, known within `redis_timeout`."""

    def __init__(self, redis_client: redis.asyncio.Redis, keys: Keys, settings: Settings) -> None:
        self._redis = redis_client
        self._keys = keys
        self._settings = settings
        self._put = redis_client.register_script(scripts.PUT_FILE)
        self._delete = redis_client.register_script(scripts.DELETE_FILE)

    async def announce_file(self, tenant: str, file_id: str) -> None:
        """Its bytes are about to be written; without a `put_file` within a day they are removed again."""
        at = time.time() + _ANNOUNCED_SECONDS
        await self._redis.zadd(self._keys.file_expiry, {_entry(tenant, file_id): at}, nx=True)

    async def put_file(self, tenant: str, file: FileObject) -> FileObject:
        """The file is there, bytes and all. Returns it with the time it expires at, if it had none."""
        if file.expires_at is None:
            file = msgspec.structs.replace(file, expires_at=file.created_at + int(self._settings.file_retention))
        assert file.expires_at is not None
        keys = [self._keys.file(file.id), self._keys.files(tenant), self._keys.file_expiry]
        record = msgspec.json.encode(_StoredFile(tenant, file))
        entry, gone = _entry(tenant, file.id), file.expires_at + _RECORD_SECONDS
        await self._put(keys=keys, args=[record, file.id, entry, file.expires_at, gone])
        return file

    async def file(self, tenant: str, file_id: str) -> FileObject:
        """
        Raises:
            UnknownFile: the caller has none of this id, or it has expired.
        """
        found = _read(await self._redis.get(self._keys.file(file_id)), tenant)
        if found is None:
            raise UnknownFile(file_id)
        return found

    async def files(
        self,
        tenant: str,
        *,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = 10_000,
        order: Order = "desc",
    ) -> FileList:
        """A page of the caller's files, in the order they were made in."""
        found: list[FileObject] = []
        async for ids in ids_after(self._redis, self._keys.files(tenant), after, order, limit + 1):
            records = await self._redis.mget([self._keys.file(one) for one in ids])
            files = [_read(record, tenant) for record in records]
            found += [file for file in files if file is not None and purpose in (None, file.purpose)]
            if len(found) > limit:
                break
        page = found[:limit]
        return FileList(
            data=page,
            first_id=page[0].id if page else None,
            last_id=page[-1].id if page else None,
            has_more=len(found) > limit,
        )

    async def delete_file(self, tenant: str, file_id: str) -> None:
        """Nobody finds it any more, and its bytes may go.

        Raises:
            UnknownFile: the caller has none of this id.
            BadRequest: a batch that has not ended reads it.
        """
        await self.file(tenant, file_id)
        user = await self._unless_used(tenant, file_id)
        if user is not None:
            raise BadRequest(f"The file is the input of {user}, which has not ended: cancel that first, or wait for it")

    async def expired_files(self, now: float, limit: int) -> list[tuple[str, str]]:
        """(tenant, id) of files whose bytes are due to be removed."""
        entries: Any = await self._redis.zrange(
            self._keys.file_expiry, "-inf", f"{now:f}", byscore=True, offset=0, num=limit
        )
        pairs = (entry.decode().rpartition("/") for entry in entries)
        return [(tenant, file_id) for tenant, _, file_id in pairs]

    async def expire_file(self, tenant: str, file_id: str) -> bool:
        """Forget one whose time has come. Returns whether its bytes may go: not while a batch reads it."""
        return await self._unless_used(tenant, file_id) is None

    async def file_removed(self, tenant: str, file_id: str) -> None:
        """Its bytes are gone."""
        await self._redis.zrem(self._keys.file_expiry, _entry(tenant, file_id))

    async def _unless_used(self, tenant: str, file_id: str) -> str | None:
        """Forget the file, or name a batch that reads it."""
        keys = self._keys
        names = [keys.file(file_id), keys.files(tenant), keys.file_expiry, keys.file_users(file_id)]
        now = time.time()
        user = await self._delete(keys=names, args=[file_id, _entry(tenant, file_id), now, now + _IN_USE_SECONDS])
        return user.decode() if isinstance(user, bytes) else None


def _read(record: object, tenant: str) -> FileObject | None:
    """The file, if it is the caller's and has not expired."""
    if not isinstance(record, bytes):
        return None
    stored = msgspec.json.decode(record, type=_StoredFile)
    expires_at = stored.file.expires_at
    alive = expires_at is None or time.time() < expires_at
    return stored.file if stored.tenant == tenant and alive else None


def _entry(tenant: str, file_id: str) -> str:
    return f"{tenant}/{file_id}"
