"""From a claimed batch to lines that can be sent: its input on this machine, looked through and indexed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import structlog
from redis.exceptions import RedisError

from common.api_keys import ApiKey
from common.batches.objects import BatchError, Endpoint
from common.batches.storage import ObjectMissing, Storage, file_name
from common.errors import ServiceUnavailable, UnknownModel
from common.served_models import Chosen, Models
from common.settings import Settings
from workers.batch.input_file import InputFile
from workers.batch.intake import Intake
from workers.batch.line_index import LineIndex

log = structlog.get_logger(__name__)

PROGRESS_SECONDS = 1.0
_AGAIN_SECONDS = 1.0


class BatchInvalid(Exception):
    """The input as a whole is wrong."""

    def __init__(self, errors: list[BatchError]) -> None:
        self.errors = errors
        super().__init__(f"{len(errors)} errors")


class Preparation:
    """Opened once for each time a batch is held; leave its `with` block to close the files."""

    def __init__(self, storage: Storage, input_file: str, endpoint: Endpoint, settings: Settings) -> None:
        self._storage = storage
        self._input_file = input_file
        self._endpoint = endpoint
        self._settings = settings
        self.index = LineIndex()
        self.lanes: dict[str, int] = {}
        """The number of each model name's lane."""
        self.total = 0
        self.file: InputFile

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.index.close()
        if hasattr(self, "file"):
            self.file.close()

    async def look_through(
        self, models: Models | None, key: ApiKey | None, progress: Callable[[int], Awaitable[None]] | None = None
    ) -> Chosen | None:
        """
        Args:
            models: those that lines may name; None when that was looked at before.
            key: the batch's owner's.
            progress: told the number of requests so far, once a second.

        Returns:
            What the model name stands for, if all lines have the same.

        Raises:
            BatchInvalid: says where it is wrong.
            StorageUnavailable: the storage is out of reach.
        """
        try:
            self.file = await asyncio.to_thread(InputFile, self._storage, file_name(self._input_file))
        except ObjectMissing:
            message = f"The input file `{self._input_file}` is not there any more."
            raise BatchInvalid([BatchError("file_not_found", message, "input_file_id")]) from None
        intake = Intake(self.file, self.index, self._endpoint, self._settings)
        told_at = time.monotonic()
        chosen: list[Chosen] = []
        while not intake.finished:
            names = await asyncio.to_thread(intake.read_some)
            if models is not None:
                chosen += await self._find(names, models, key, intake)
            if progress is not None and time.monotonic() - told_at >= PROGRESS_SECONDS:
                await progress(intake.total)
                told_at = time.monotonic()
        if intake.errors:
            raise BatchInvalid(intake.told_errors())
        self.lanes, self.total = intake.lanes, intake.total
        return chosen[0] if len(chosen) == 1 else None

    async def _find(
        self, names: dict[str, list[int]], models: Models, key: ApiKey | None, intake: Intake
    ) -> list[Chosen]:
        found = []
        for name, lines in names.items():
            try:
                found.append(await _find_model(name, models, key))
            except UnknownModel as error:
                intake.refuse_model(name, lines, error.message)
        return found


async def _find_model(name: str, models: Models, key: ApiKey | None) -> Chosen:
    """
    Raises:
        UnknownModel: nobody serves it.
    """
    while True:
        try:
            return await models.find(name, key)
        except (ServiceUnavailable, RedisError) as error:
            log.warning("batch_waits_for_model", reason=type(error).__name__)
        await asyncio.sleep(_AGAIN_SECONDS)
