"""What all resources share."""

from __future__ import annotations

import falcon
from falcon.asgi import Response

from web.services import Services


class Resource:
    """A resource with its collaborators. Responders follow Falcon's naming (`on_get`, `on_post`)."""

    protected = False
    """Whether POST wants the API key."""
    streams = False
    """Whether POST always answers with an event stream."""

    def __init__(self, services: Services) -> None:
        self.services = services


def write_json(response: Response, body: bytes) -> None:
    response.content_type = falcon.MEDIA_JSON
    response.data = body
