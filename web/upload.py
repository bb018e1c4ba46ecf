"""A file on its way from a form into storage."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import structlog
from falcon.asgi import Request
from redis.exceptions import RedisError

from common.batches.objects import FileObject, FilePurpose, new_file_id
from common.batches.storage import file_name
from common.errors import BadRequest, PayloadTooLarge, StorageUnavailable
from common.protocols.openai_batch_request import check_expiry
from web.disconnect import RequestLifetime
from web.multipart import OVERHEAD_BYTES, FormField, form_fields
from web.services import Services

log = structlog.get_logger(__name__)

PURPOSE: FilePurpose = "batch"
ANCHOR_FIELD = "expires_after[anchor]"
SECONDS_FIELD = "expires_after[seconds]"
LONGEST_NAME = 255


def _purpose(value: str) -> None:
    if value != PURPOSE:
        raise BadRequest(f"`purpose` must be '{PURPOSE}': files of other purposes are of no use here")


def _nothing(value: str) -> None:
    """The anchor is looked at with the seconds."""


def _whole(value: str) -> None:
    if not (value.isascii() and value.isdigit()):
        raise BadRequest("`expires_after.seconds` must be a whole number")


_FIELDS: dict[str, Callable[[str], None]] = {"purpose": _purpose, ANCHOR_FIELD: _nothing, SECONDS_FIELD: _whole}
"""What is wrong with a value is said as soon as it comes: a file behind it may be large."""


class Upload:
    """One form. Nothing of it is left if it does not become a file."""

    def __init__(self, services: Services, request: Request) -> None:
        self.ignored: list[str] = []
        """Fields that had no effect."""
        self._services = services
        self._request = request
        self._id = new_file_id()
        self._values: dict[str, str] = {}
        self._filename: str | None = None
        self._size = 0

    async def receive(self) -> FileObject:
        """
        Raises:
            BadRequest: a field breaks a rule, or is missing.
            PayloadTooLarge: the file is larger than `max_file_bytes`.
            StorageUnavailable: full, or out of reach.
            TgqError: see `web.multipart.form_fields`.
            redis.exceptions.RedisError: Redis is away.
        """
        services, tenant = self._services, self._request.context.tenant
        await services.batches.announce_file(tenant, self._id)
        try:
            async for field in form_fields(self._request, services.settings.max_file_bytes + OVERHEAD_BYTES):
                await self._take(field)
            RequestLifetime.of(self._request.scope).watch()
            file = self._file()
        except BaseException as error:
            await self._forget()
            if isinstance(error, PayloadTooLarge):  # whichever limit it met first
                limit = services.settings.max_file_bytes
                raise PayloadTooLarge(f"The file is larger than the {limit} bytes this server takes") from None
            raise
        file = await services.batches.put_file(tenant, file)
        log.info("file_uploaded", file=file.id, bytes=file.bytes, tenant=tenant)
        return file

    async def _take(self, field: FormField) -> None:
        if field.name == "file":
            await self._store(field)
        elif (check := _FIELDS.get(field.name)) is not None:
            if field.name in self._values:
                raise BadRequest(f"`{field.name}` must be there once")
            value = await field.text()
            check(value)
            self._values[field.name] = value
        else:
            self.ignored.append(field.name)

    async def _store(self, field: FormField) -> None:
        if self._filename is not None:
            raise BadRequest("`file` must be there once")
        if not field.filename:
            raise BadRequest("`file` must be a file, with a name")
        if len(field.filename) > LONGEST_NAME or not field.filename.isprintable():
            raise BadRequest(f"`file` must have a name of at most {LONGEST_NAME} printable characters")
        limit = self._services.settings.max_file_bytes
        async with self._services.storage.writer(file_name(self._id)) as writer:
            async for chunk in field.chunks():
                if writer.size + len(chunk) > limit:
                    raise PayloadTooLarge
                await writer.write(chunk)
        self._filename, self._size = field.filename, writer.size

    def _file(self) -> FileObject:
        for name, there in (("file", self._filename), ("purpose", self._values.get("purpose"))):
            if there is None:
                raise BadRequest(f"`{name}` is required")
        assert self._filename is not None
        now, expires_at = int(time.time()), None
        anchor, seconds = self._values.get(ANCHOR_FIELD), self._values.get(SECONDS_FIELD)
        if anchor is not None or seconds is not None:
            if anchor is None or seconds is None:
                missing = "anchor" if anchor is None else "seconds"
                raise BadRequest(f"`expires_after.{missing}` is required")
            check_expiry(anchor, int(seconds), "expires_after.anchor", "expires_after.seconds")
            expires_at = now + int(seconds)
        return FileObject(
            id=self._id,
            bytes=self._size,
            created_at=now,
            expires_at=expires_at,
            filename=self._filename,
            purpose=PURPOSE,
        )

    async def _forget(self) -> None:
        # It was announced: what cannot be removed now is removed in a day.
        with suppress(StorageUnavailable, RedisError, OSError):
            await self._services.storage.remove(file_name(self._id))
            await self._services.batches.file_removed(self._request.context.tenant, self._id)
