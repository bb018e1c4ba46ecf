"""What all resources share."""

from __future__ import annotations

import falcon
from falcon.asgi import Request, Response

from web.body import read_json_body
from web.disconnect import RequestLifetime
from web.services import Services


class Resource:
    """A resource with its collaborators. Responders follow Falcon's naming (`on_get`, `on_post`)."""

    protected = False
    """Whether POST wants the API key."""
    streams = False
    """Whether POST always answers with an event stream."""

    def __init__(self, services: Services) -> None:
        self.services = services

    async def read(self, request: Request) -> bytes:
        body = await read_json_body(request, self.services.settings.payload_limit)
        # From here on a client that leaves ends its request; before, reading its body tells.
        RequestLifetime.of(request.scope).watch()
        return body


def write_json(response: Response, body: bytes) -> None:
    response.content_type = falcon.MEDIA_JSON
    response.data = body
