"""One batch while this runner holds it, from whatever state it is in to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Literal

import structlog
from msgspec import Struct
from redis.exceptions import RedisError

from common.api_keys import ApiKey
from common.batches.objects import BatchError, BatchObject, Counts
from common.batches.storage import Storage
from common.batches.store import BatchStore, Claim, LeaseLost
from common.batches.transitions import IllegalTransition
from common.errors import ServiceUnavailable, UnknownBatch
from common.protocols.batch_lines import CANCELLED, EXPIRED, FAILED, Failure
from common.served_models import Models
from common.settings import Settings
from workers.batch.answering import Answering, Terms
from workers.batch.company import beside, dismiss
from workers.batch.endings import End, Endings, tell_unfinished
from workers.batch.interruptions import LOOK_SECONDS, Interrupted, Interruptions
from workers.batch.lane import Lane
from workers.batch.lease import keep_lease
from workers.batch.preparation import BatchInvalid, Preparation
from workers.batch.results import Results
from workers.batch.windows import Windows

log = structlog.get_logger(__name__)

MOST_FAILURES = 3
"""Times a batch is tried that ends with an error nobody expected."""
PATIENCE_SECONDS = 3600.0
"""How long after its window a batch may take to end while Redis or the storage is away."""
STOP_SECONDS = 5.0
"""What this process has to write results down when it is to end."""
_LONGEST_PAUSE = 30.0

_FAILURES: dict[End, Failure] = {"cancelled": CANCELLED, "expired": EXPIRED, "failed": FAILED}


class Collaborators(Struct, frozen=True):
    """What all batches of a runner work with."""

    settings: Settings
    store: BatchStore
    storage: Storage
    models: Models
    answering: Answering
    windows: Windows
    endings: Endings


class BatchRun:
    """Of one claim."""

    def __init__(self, claim: Claim, use: Collaborators, stopping: asyncio.Event) -> None:
        """
        Args:
            stopping: set when this process is to end.
        """
        self._claim = claim
        self._use = use
        self._interruptions = Interruptions(use.store, claim, stopping)
        batch, request = claim.batch, claim.request
        self._terms = Terms(batch.endpoint, claim.tenant, request.weight, self._interruptions.expires_at)
        models = None if request.models is None else frozenset(request.models)
        self._key = None if models is None else ApiKey(claim.tenant, b"", models=models)
        self._id = batch.id

    async def run(self) -> None:
        """Until the batch has ended, this process is to stop, or the lease is lost; raises only when cancelled."""
        renewing = asyncio.create_task(keep_lease(self._use.store, self._claim))
        try:
            await beside(self._run(), renewing)
            await self._use.store.release(self._claim)
        except (LeaseLost, UnknownBatch):
            log.warning("batch_lease_lost", batch=self._id)
        except RedisError as error:
            log.warning("batch_not_released", batch=self._id, reason=type(error).__name__)
        finally:
            await dismiss(renewing)

    async def _run(self) -> None:
        """Try until it is done with; what is not there now is waited for."""
        failures, pause = 0, 1.0
        while True:
            try:
                await self._try()
                return
            except Interrupted:
                return
            except (LeaseLost, UnknownBatch):
                raise
            except IllegalTransition:
                given_up = False  # It was cancelled in the very moment it went on.
            except (RedisError, ServiceUnavailable) as error:
                log.warning("batch_waits", batch=self._id, reason=type(error).__name__)
                given_up = time.time() > self._interruptions.expires_at + PATIENCE_SECONDS
            except Exception as error:  # a batch's boundary: others go on, and this one is told to have failed
                log.exception("batch_broke_off", batch=self._id, exc_info=error)
                failures += 1
                given_up = failures >= MOST_FAILURES
            if given_up:
                await self._fail()
                return
            if await self._interruptions.stopped_within(pause):
                return
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _try(self) -> None:
        """From the batch's state in Redis to its end.

        Raises:
            Interrupted: this process is to end.
        """
        use, claim = self._use, self._claim
        batch = await use.store.current(claim)
        if not batch.open:
            return
        if batch.status == "finalizing":
            await self._unless_stopped(use.endings.end(claim, "completed"))
            return
        with Preparation(use.storage, batch.input_file_id, batch.endpoint, use.settings) as prepared:
            try:
                interruption = await self._prepare(prepared, batch)
            except BatchInvalid as invalid:
                await self._refuse(batch, invalid.errors)
                return
            if interruption is not None and (await use.store.current(claim)).in_progress_at is None:
                await use.endings.end(claim, interruption, files=False)
                return
            results = Results(use.store, use.storage, claim)
            await results.load()
            await self._go_through(prepared, results)

    async def _prepare(self, prepared: Preparation, batch: BatchObject) -> End | None:
        """Look the input through; returns the batch's end, if that comes before anything was sent."""
        use, claim = self._use, self._claim
        if batch.in_progress_at is not None:
            # What was sent once is told of in the end, and that needs the index.
            await self._unless_stopped(prepared.look_through(None, self._key))
            log.info("batch_goes_on", batch=self._id, requests=prepared.total)
            return None
        if time.time() >= self._terms.expires_at:
            return "expired"  # A short input might be looked through before anybody notices.

        async def progress(total: int) -> None:
            await use.store.update(claim, request_counts=Counts(total))

        async def prepare() -> None:
            chosen = await prepared.look_through(use.models, self._key, progress)
            model = None if chosen is None else chosen.adapter or chosen.model.id
            await use.store.update(claim, status="in_progress", model=model, request_counts=Counts(prepared.total))
            log.info("batch_begins", batch=self._id, requests=prepared.total)

        return await self._interruptible(prepare())

    async def _go_through(self, prepared: Preparation, results: Results) -> None:
        """Send what is not done, and end."""
        writing = asyncio.create_task(results.keep_writing())
        try:
            end: End = await self._interruptible(self._send(prepared, results), writing) or "completed"
            if end != "completed":
                left = tell_unfinished(results, prepared, self._claim.batch, _FAILURES[end])
                await self._unless_stopped(left, writing)
            if results.done.count != prepared.total:
                raise RuntimeError(f"{prepared.total - results.done.count} lines are neither done nor told of")
            results.end()
            await writing
        except Interrupted:
            await _write_down(results, writing)
            raise
        finally:
            await dismiss(writing)
        await self._unless_stopped(self._use.endings.end(self._claim, end))

    async def _send(self, prepared: Preparation, results: Results) -> None:
        use = self._use
        async with asyncio.TaskGroup() as lanes:
            for name, number in prepared.lanes.items():
                lane = Lane(
                    name,
                    number,
                    self._claim.batch.id,
                    self._terms,
                    self._key,
                    models=use.models,
                    answering=use.answering,
                    windows=use.windows,
                    results=results,
                )
                lanes.create_task(lane.run(prepared.index, prepared.file))
        if results.done.count < prepared.total:
            # Their time was over, or nearly so: the batch is about to expire.
            await asyncio.sleep(max(self._terms.expires_at - time.time(), 0) + 4 * LOOK_SECONDS)

    async def _refuse(self, batch: BatchObject, errors: list[BatchError]) -> None:
        """The input is wrong, or gone."""
        if batch.in_progress_at is None:
            await self._use.store.update(self._claim, request_counts=Counts())
        await self._use.endings.end(self._claim, "failed", errors, files=batch.in_progress_at is not None)

    async def _fail(self) -> None:
        """Give the batch up, with its results if they can still be had."""
        use, claim = self._use, self._claim
        errors = [BatchError("batch_failed", "The batch could not be finished: the service failed.")]
        try:
            await self._unless_stopped(self._fail_with_files(errors))
        except (LeaseLost, UnknownBatch, RedisError, Interrupted):
            raise
        except Exception as error:  # whatever it is, the batch has to end
            log.exception("batch_results_lost", batch=self._id, exc_info=error)
            await use.endings.end(claim, "failed", errors, files=False)

    async def _fail_with_files(self, errors: list[BatchError]) -> None:
        use, claim = self._use, self._claim
        batch = await use.store.current(claim)
        if batch.status != "finalizing" and batch.in_progress_at is not None:
            with Preparation(use.storage, batch.input_file_id, batch.endpoint, use.settings) as prepared:
                await prepared.look_through(None, self._key)
                results = Results(use.store, use.storage, claim)
                await results.load()
                writing = asyncio.create_task(results.keep_writing())
                try:
                    await beside(tell_unfinished(results, prepared, batch, FAILED), writing)
                    results.end()
                    await writing
                finally:
                    await dismiss(writing)
        await use.endings.end(claim, "failed", errors)

    # -- what comes in between

    async def _interruptible(
        self, work: Coroutine[Any, Any, None], *others: asyncio.Task[None]
    ) -> Literal["cancelled", "expired"] | None:
        """Do the work unless the batch is cancelled or expires; returns which.

        Raises:
            Interrupted: this process is to end.
        """
        try:
            await self._watched(work, self._interruptions.any(), *others)
        except Interrupted as interrupted:
            if interrupted.by == "stopped":
                raise
            return interrupted.by
        return None

    async def _unless_stopped(self, work: Coroutine[Any, Any, Any], *others: asyncio.Task[None]) -> None:
        """
        Raises:
            Interrupted: this process is to end.
        """
        await self._watched(work, self._interruptions.stop(), *others)

    async def _watched(
        self, work: Coroutine[Any, Any, Any], watch: Coroutine[Any, Any, None], *others: asyncio.Task[None]
    ) -> None:
        watching = asyncio.create_task(watch)
        try:
            await beside(work, watching, *others)
        finally:
            await dismiss(watching)


async def _write_down(results: Results, writing: asyncio.Task[None]) -> None:
    """What is finished, if that goes quickly; the rest is done again."""
    results.end()
    await asyncio.wait([writing], timeout=STOP_SECONDS)
