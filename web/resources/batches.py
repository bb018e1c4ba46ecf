"""`/v1/batches`."""

from __future__ import annotations

import time

import msgspec
import structlog
from falcon.asgi import Request, Response

from common.api_keys import ApiKey
from common.batches.objects import BATCH_PREFIX, BatchObject, BatchRequest, new_batch_id
from common.errors import BadRequest, InvalidRequest, UnknownFile
from common.protocols.dialects import error_form
from common.protocols.openai_batch_request import BatchCreate, check_batch, window_seconds
from common.wire import WIRE_VERSION, KeptAnswer
from web import sse
from web.batch_progress import progress
from web.closing import Closing
from web.disconnect import RequestLifetime
from web.idempotency import idempotency_key
from web.query import id_after, whole_number
from web.resources.resource import Resource, write_json
from web.timing_headers import ignored_headers

log = structlog.get_logger(__name__)

MOST_LISTED = 100
LISTED = 20


class Batches(Resource):
    async def on_post(self, request: Request, response: Response) -> None:
        try:
            body = await self.parsed(request, BatchCreate)
            key = idempotency_key(request)
        except InvalidRequest as error:
            raise BadRequest(error.message) from None
        if key is None:
            answer = await self._create(request, body)
        else:
            answer = await self.services.idempotency.once(request, key, lambda: self._create(request, body))
        response.set_headers(answer.headers)
        write_json(response, answer.body)

    async def on_get(self, request: Request, response: Response) -> None:
        page = await self.services.batches.batches(
            request.context.tenant,
            after=id_after(request, BATCH_PREFIX),
            limit=whole_number(request, "limit", LISTED, MOST_LISTED),
        )
        write_json(response, msgspec.json.encode(page))

    on_head = on_get

    async def _create(self, request: Request, body: BatchCreate) -> KeptAnswer:
        services, tenant, key = self.services, request.context.tenant, request.context.key
        endpoint = check_batch(body, services.settings.batch_completion_windows)
        try:
            file = await services.batches.file(tenant, body.input_file_id)
        except UnknownFile:
            raise UnknownFile(body.input_file_id, "input_file_id") from None
        if file.purpose != "batch":
            raise BadRequest(f"`input_file_id` must be a file with the purpose 'batch', given '{file.purpose}'")
        now = int(time.time())
        batch = BatchObject(
            id=new_batch_id(),
            endpoint=endpoint,
            input_file_id=file.id,
            completion_window=body.completion_window,
            created_at=now,
            expires_at=now + window_seconds(body.completion_window),
            metadata=body.metadata,
        )
        await services.batches.create(tenant, batch, _request(body, key))
        log.info("batch_created", batch=batch.id, file=file.id, tenant=tenant)
        return KeptAnswer(WIRE_VERSION, ignored_headers(body.ignored), msgspec.json.encode(batch))


class OneBatch(Resource):
    async def on_get(self, request: Request, response: Response, batch_id: str) -> None:
        batch = await self.services.batches.batch(request.context.tenant, batch_id)
        write_json(response, msgspec.json.encode(batch))

    on_head = on_get


class CancelBatch(Resource):
    """Takes no body."""

    async def on_post(self, request: Request, response: Response, batch_id: str) -> None:
        batch = await self.services.batches.cancel(request.context.tenant, batch_id)
        write_json(response, msgspec.json.encode(batch))


class BatchEvents(Resource):
    async def on_get(self, request: Request, response: Response, batch_id: str) -> None:
        batch = await self._headed(request, response, batch_id)
        RequestLifetime.of(request.scope).watch()
        form = error_form(request.path, self.services.settings)
        response.stream = Closing(progress(self.services, request.context.tenant, batch, form))

    async def on_head(self, request: Request, response: Response, batch_id: str) -> None:
        await self._headed(request, response, batch_id)

    async def _headed(self, request: Request, response: Response, batch_id: str) -> BatchObject:
        batch = await self.services.batches.batch(request.context.tenant, batch_id)
        response.content_type = sse.CONTENT_TYPE
        response.set_headers(sse.HEADERS)
        return batch


def _request(body: BatchCreate, key: ApiKey | None) -> BatchRequest:
    expiry = body.output_expires_after
    return BatchRequest(
        output_expires_after=expiry.seconds if expiry is not None else None,
        weight=key.weight if key is not None else 1.0,
        models=sorted(key.models) if key is not None and key.models is not None else None,
    )
