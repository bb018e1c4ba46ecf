"""`/v1/files`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from falcon.asgi import Request, Response

from common.batches.file_records import Order
from common.batches.objects import FILE_PREFIX, FileDeleted, FileObject
from common.batches.removal import remove_file
from common.batches.storage import ObjectMissing, file_name
from common.errors import BadRequest, StorageUnavailable
from web.closing import Closing
from web.disconnect import RequestLifetime
from web.idempotency import HEADER
from web.query import id_after, whole_number
from web.resources.resource import Resource, write_json
from web.timing_headers import ignored_headers
from web.upload import Upload

BYTES = "application/octet-stream"
MOST_LISTED = 10_000


class Files(Resource):
    async def on_post(self, request: Request, response: Response) -> None:
        upload = Upload(self.services, request)
        file = await upload.receive()
        unused = [HEADER] if request.get_header(HEADER) is not None else []
        response.set_headers(ignored_headers(upload.ignored + unused))
        write_json(response, msgspec.json.encode(file))

    async def on_get(self, request: Request, response: Response) -> None:
        page = await self.services.batches.files(
            request.context.tenant,
            purpose=request.get_param("purpose"),
            after=id_after(request, FILE_PREFIX),
            limit=whole_number(request, "limit", MOST_LISTED, MOST_LISTED),
            order=_order(request),
        )
        write_json(response, msgspec.json.encode(page))

    on_head = on_get


class OneFile(Resource):
    async def on_get(self, request: Request, response: Response, file_id: str) -> None:
        file = await self.services.batches.file(request.context.tenant, file_id)
        write_json(response, msgspec.json.encode(file))

    on_head = on_get

    async def on_delete(self, request: Request, response: Response, file_id: str) -> None:
        await remove_file(self.services.batches, self.services.storage, request.context.tenant, file_id)
        write_json(response, msgspec.json.encode(FileDeleted(file_id)))


class FileContent(Resource):
    async def on_get(self, request: Request, response: Response, file_id: str) -> None:
        file = await self._headed(request, response, file_id)
        chunks = self.services.storage.chunks(file_name(file.id), 0, file.bytes)
        RequestLifetime.of(request.scope).watch()
        try:
            first = await anext(chunks, b"")  # so that storage out of reach is an error, and not half an answer
        except ObjectMissing:
            raise StorageUnavailable("the file's bytes are not where this node looks for them") from None
        response.set_stream(Closing(_behind(first, chunks)), file.bytes)

    async def on_head(self, request: Request, response: Response, file_id: str) -> None:
        file = await self._headed(request, response, file_id)
        response.content_length = file.bytes

    async def _headed(self, request: Request, response: Response, file_id: str) -> FileObject:
        file = await self.services.batches.file(request.context.tenant, file_id)
        response.content_type = BYTES
        response.downloadable_as = file.filename
        response.set_header("x-content-type-options", "nosniff")
        return file


async def _behind(first: bytes, chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(chunks):
        if first:
            yield first
        async for chunk in chunks:
            yield chunk


def _order(request: Request) -> Order:
    given = request.get_param("order")
    if given is None or given == "desc":
        return "desc"
    if given == "asc":
        return "asc"
    raise BadRequest("`order` must be 'asc' or 'desc'")
