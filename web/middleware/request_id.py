"""Gives every request an id: the client's `x-request-id` if it is a plain word, else a new one."""

from __future__ import annotations

import re
import secrets

from falcon.asgi import Request, Response

_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,128}")


class RequestId:
    async def process_request(self, request: Request, response: Response) -> None:
        given = request.get_header("x-request-id") or ""
        # Anything else could break logs or headers; a new id is better than no answer.
        request.context.request_id = given if _PLAIN.fullmatch(given) else secrets.token_hex(16)
        response.set_header("x-request-id", request.context.request_id)
