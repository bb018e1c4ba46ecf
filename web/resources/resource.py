"""What all resources share."""

from __future__ import annotations

import asyncio

import falcon
from falcon.asgi import Request, Response

from common.protocols.json_body import Model, parse_body
from web.body import read_json_body
from web.disconnect import RequestLifetime
from web.idempotency import HEADER, fingerprint
from web.services import Services

_PARSED_AT_ONCE = 65_536
"""Bytes; longer bodies are parsed in a thread, so that others are served meanwhile."""


class Resource:
    """A resource with its collaborators. Responders follow Falcon's naming (`on_get`, `on_post`)."""

    protected = False
    """Whether it wants an API key, whatever its path (see `web.access`)."""
    streams = False
    """Whether POST always answers with an event stream."""

    def __init__(self, services: Services) -> None:
        self.services = services

    async def read(self, request: Request) -> bytes:
        body = await read_json_body(request, self.services.settings.payload_limit)
        # From here on a client that leaves ends its request; before, reading its body tells.
        RequestLifetime.of(request.scope).watch()
        if request.get_header(HEADER) is not None:
            request.context.fingerprint = fingerprint(request, body)
        return body

    async def parsed(self, request: Request, model: type[Model]) -> Model:
        """The body as `model`; see `parse_body`."""
        body = await self.read(request)
        if len(body) > _PARSED_AT_ONCE:
            return await asyncio.to_thread(parse_body, model, body)
        return parse_body(model, body)


def write_json(response: Response, body: bytes) -> None:
    response.content_type = falcon.MEDIA_JSON
    response.data = body
