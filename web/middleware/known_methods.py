"""Refuses methods nobody has heard of like any other that a route does not take."""

from __future__ import annotations

from typing import Any

from falcon import COMBINED_METHODS, HTTPMethodNotAllowed
from falcon.asgi import Request, Response
from falcon.routing import map_http_methods


class KnownMethods:
    """Falcon answers only the methods it knows with 405 and `Allow`; all others would be a 400."""

    async def process_resource(self, req: Request, resp: Response, resource: object, params: dict[str, Any]) -> None:
        if req.method not in COMBINED_METHODS:
            raise HTTPMethodNotAllowed([*sorted(map_http_methods(resource)), "OPTIONS"])
