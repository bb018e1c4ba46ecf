"""Keeps those without the key from the routes that are protected."""

from __future__ import annotations

import hmac
from typing import Any

from falcon.asgi import Request, Response
from pydantic import SecretStr

from common.errors import Unauthorized
from web.resources.resource import Resource


class ApiKey:
    def __init__(self, key: SecretStr | None) -> None:
        self._key = key.get_secret_value().encode() if key is not None else None

    async def process_resource(self, req: Request, resp: Response, resource: object, params: dict[str, Any]) -> None:
        if not isinstance(resource, Resource):
            return
        req.context.stream = resource.streams
        if self._key is None or not resource.protected or req.method != "POST":
            return
        # The bytes the client sent, which Falcon decoded as Latin-1: text of that might lose bytes of a key to `strip`.
        header = (req.get_header("authorization") or "").encode("latin-1")
        scheme, _, given = header.partition(b" ")
        # In constant time, and never in a message.
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._key):
            raise Unauthorized
