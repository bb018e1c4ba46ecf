"""Keeps those without a key from the routes that are protected, and tells the others' limits."""

from __future__ import annotations

from typing import Any

from falcon.asgi import Request, Response

from common.api_keys import KeyRing
from common.errors import Unauthorized
from common.key_limits import Usage
from common.settings import Settings
from web.access import needs_key
from web.resources.resource import Resource


class ApiKeys:
    """Sets `context.key` (an `ApiKey`, or None) and `context.tenant` (its name, or nothing)."""

    def __init__(self, ring: KeyRing, settings: Settings) -> None:
        self._ring = ring
        self._everything = settings.protect == "all"

    async def process_resource(self, req: Request, resp: Response, resource: object, params: dict[str, Any]) -> None:
        req.context.key, req.context.tenant = None, ""
        if not isinstance(resource, Resource):
            return
        req.context.stream = resource.streams
        if not self._ring.required:
            return
        needed = needs_key(
            req.method, req.uri_template or "", protected=resource.protected, everything=self._everything
        )
        # The bytes the client sent, which Falcon decoded as Latin-1: text of that might lose bytes of a key to `strip`.
        header = (req.get_header("authorization") or "").encode("latin-1")
        scheme, _, given = header.partition(b" ")
        key = self._ring.find(given.strip()) if scheme.lower() == b"bearer" else None
        if key is not None:
            req.context.key, req.context.tenant = key, key.name
        elif needed:
            raise Unauthorized  # never with what was given

    async def process_response(self, req: Request, resp: Response, resource: object, req_succeeded: bool) -> None:
        usage: Usage | None = getattr(req.context, "usage", None)
        if usage is not None:
            resp.set_headers(_headers(usage))


def _headers(usage: Usage) -> dict[str, str]:
    """OpenAI's names; what it counts by the minute as requests is here what may be in flight."""
    headers = {}
    if usage.requests_limit is not None:
        headers["x-ratelimit-limit-requests"] = str(usage.requests_limit)
        headers["x-ratelimit-remaining-requests"] = str(usage.requests_left)
    if usage.tokens_limit is not None:
        headers["x-ratelimit-limit-tokens"] = str(usage.tokens_limit)
        headers["x-ratelimit-remaining-tokens"] = str(usage.tokens_left)
        headers["x-ratelimit-reset-tokens"] = f"{usage.tokens_reset:.3f}s"
    return headers
