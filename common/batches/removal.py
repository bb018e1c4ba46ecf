"""Files that go: by their owner's wish, or because their time is over. The record first, then the bytes, then the note that
there were any: whoever is interrupted leaves the rest to the next round."""

from __future__ import annotations

from common.batches.file_records import FileRecords
from common.batches.storage import Storage, file_name

_AT_ONCE = 100


async def remove_file(files: FileRecords, storage: Storage, tenant: str, file_id: str) -> None:
    """
    Raises:
        UnknownFile: the caller has none of this id.
        BadRequest: a batch that has not ended reads it.
    """
    await files.delete_file(tenant, file_id)
    await _remove_bytes(files, storage, tenant, file_id)


async def remove_expired_files(files: FileRecords, storage: Storage, now: float) -> int:
    """One round; any number of processes may make it at once. Returns how many were removed.

    Args:
        now: Unix seconds.

    Raises:
        StorageUnavailable: full, or out of reach.
    """
    removed = 0
    for tenant, file_id in await files.expired_files(now, _AT_ONCE):
        if await files.expire_file(tenant, file_id):
            await _remove_bytes(files, storage, tenant, file_id)
            removed += 1
    return removed


async def _remove_bytes(files: FileRecords, storage: Storage, tenant: str, file_id: str) -> None:
    await storage.remove(file_name(file_id))
    await files.file_removed(tenant, file_id)
