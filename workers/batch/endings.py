"""How a batch ends: what was not done is told, its results become files, and its status says so.

Every step may be taken again by another runner, when this one dies on the way: files have the same ids each time, and parts
go only once the files made of them are there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import islice
from typing import Literal

import structlog

from common.batches.objects import FILE_PREFIX, BatchError, BatchErrors, BatchObject, FileObject, Part
from common.batches.storage import Storage, batch_folder, file_name
from common.batches.store import BatchStore, Claim
from common.errors import UnknownFile
from common.protocols.batch_lines import Failure, failure_line, read_line
from workers.batch.preparation import Preparation
from workers.batch.results import Kind, Results, join_parts
from workers.batch.webhooks import Webhooks

log = structlog.get_logger(__name__)

End = Literal["completed", "cancelled", "expired", "failed"]

_LINES_AT_ONCE = 1000


async def tell_unfinished(results: Results, prepared: Preparation, batch: BatchObject, failure: Failure) -> None:
    """Every line that is not done goes to the error file."""
    lines = _unfinished_lines(results, prepared, batch, failure)
    while portion := await asyncio.to_thread(_some, lines):
        for number, line in portion:
            await results.add("error", number, line)


def _unfinished_lines(
    results: Results, prepared: Preparation, batch: BatchObject, failure: Failure
) -> Iterator[tuple[int, bytes]]:
    for place in prepared.index.places():
        if place.number not in results.done:
            request = read_line(prepared.file.read(place.start, place.length), batch.endpoint)
            yield place.number, failure_line(batch.id, place.number, request.custom_id, failure)


def _some(lines: Iterator[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    return list(islice(lines, _LINES_AT_ONCE))


class Endings:
    """For all batches of one process."""

    def __init__(self, store: BatchStore, storage: Storage, webhooks: Webhooks) -> None:
        self._store = store
        self._storage = storage
        self._webhooks = webhooks

    async def end(self, claim: Claim, end: End, errors: list[BatchError] | None = None, *, files: bool = True) -> None:
        """Make files of all registered results, and end the batch.

        Args:
            errors: why it failed.
            files: whether it has any results.

        Raises:
            LeaseLost: another runner has the batch.
            IllegalTransition: its owner has cancelled it meanwhile.
            StorageUnavailable: full, or out of reach.
            ObjectMissing: a part is gone.
        """
        store = self._store
        if end == "completed":
            await store.update(claim, status="finalizing")
        output = error = None
        if files:
            batch, parts = await store.current(claim), await store.parts(claim)
            output = await self._file(claim, batch, end, "output", parts)
            error = await self._file(claim, batch, end, "error", parts)
            # Whoever lost the lease must not take the parts away from another runner that still adds to them.
            await store.renew(claim)
            await self._storage.remove_tree(batch_folder(batch.id))
        await self._webhooks.plan(claim.tenant, claim.batch.id)
        told = BatchErrors(errors) if errors else None
        batch = await store.update(claim, status=end, output_file_id=output, error_file_id=error, errors=told)
        counts = batch.request_counts
        log.info(
            "batch_ended",
            batch=batch.id,
            status=end,
            total=counts.total,
            completed=counts.completed,
            failed=counts.failed,
            seconds=round(time.time() - batch.created_at),
        )

    async def _file(self, claim: Claim, batch: BatchObject, end: End, kind: Kind, parts: list[Part]) -> str | None:
        """Id of the file of one kind of results; None when there are none."""
        mine = [part for part in parts if part.kind == kind]
        if not mine:
            return None
        file_id = _file_id(batch, end, kind)
        size = sum(part.bytes for part in mine)
        try:
            made = await self._store.file(claim.tenant, file_id)
        except UnknownFile:
            pass
        else:
            if made.bytes == size:
                return file_id  # Another runner has come so far before.
        await self._store.announce_file(claim.tenant, file_id)
        await join_parts(self._storage, mine, file_name(file_id))
        created_at, seconds = int(time.time()), claim.request.output_expires_after
        await self._store.put_file(
            claim.tenant,
            FileObject(
                id=file_id,
                bytes=size,
                created_at=created_at,
                expires_at=None if seconds is None else created_at + seconds,
                filename=f"{batch.id}_{kind}.jsonl",
                purpose="batch_output",
            ),
        )
        return file_id


def _file_id(batch: BatchObject, end: End, kind: Kind) -> str:
    """The same whoever ends the batch; as unguessable as the batch's, and in its place among ids, which begin with a time."""
    expired_at = batch.expires_at if end == "expired" else None
    seconds = batch.finalizing_at or batch.cancelling_at or expired_at or batch.created_at
    return f"{FILE_PREFIX}{seconds * 1_000_000:014x}{batch.id[-19:]}{'o' if kind == 'output' else 'e'}"
