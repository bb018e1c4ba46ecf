"""Refuses work while the process drains; what is read and what is cancelled is answered to the end."""

from __future__ import annotations

from typing import Any

from falcon.asgi import Request, Response

from common.errors import ServiceUnavailable
from web.drain import Drain


class Draining:
    """The server closes every connection by itself after its answer, and says so in it (`Connection: close`)."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain

    async def process_resource(self, req: Request, resp: Response, resource: object, params: dict[str, Any]) -> None:
        if self._drain.begun and req.method == "POST":
            raise ServiceUnavailable("This web node is stopping: send the request again")
