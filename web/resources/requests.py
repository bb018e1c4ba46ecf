"""`/v1/requests/{id}`: requests by the id in their answer's `x-request-id`.

DELETE cancels whatever the caller has under way with this id, at any web process: waiting for a worker, running, streamed
or not, also a resumable stream whose client or web process is gone. A whole answer becomes error 499, a stream ends with
that error as its last event. Ids that callers choose may not be unique: all requests that have it are cancelled. Again, or
when there is none (any more), it is 404. When a web process that may have it does not answer it is 503, and may be tried again.
"""

from __future__ import annotations

from falcon.asgi import Request, Response
from msgspec import Struct

from common.errors import ServiceUnavailable, TgqError, UnknownRequest
from common.protocols.tgi_answer import encode
from web.resources.resource import Resource, write_json
from web.running import request_digest


class CancelledRequest(Struct, frozen=True):
    """A request that was under way is not any more."""

    id: str
    cancelled: bool = True


class OneRequest(Resource):
    async def on_delete(self, request: Request, response: Response, request_id: str) -> None:
        services = self.services
        digest = request_digest(request.context.tenant, request_id)
        problem: TgqError = UnknownRequest()
        try:
            running = await services.running.cancel(digest)
        except ServiceUnavailable as error:
            running, problem = False, error
        resumable = await services.resumption.drop(digest, orphan=not running)
        if not (running or resumable):
            raise problem
        write_json(response, encode(CancelledRequest(request_id)))
