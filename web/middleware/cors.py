"""Lets browsers call: preflight requests, and headers on every answer, errors and streams included."""

from __future__ import annotations

from falcon.asgi import Request, Response

_ALLOW_METHODS = "GET, HEAD, POST, OPTIONS"
_ALLOW_HEADERS = "authorization, content-type, last-event-id, x-request-id"
_EXPOSE_HEADERS = ", ".join(
    (
        "retry-after",
        "x-request-id",
        "x-compute-type",
        "x-compute-time",
        "x-compute-characters",
        "x-total-time",
        "x-validation-time",
        "x-queue-time",
        "x-inference-time",
        "x-time-per-token",
        "x-prompt-tokens",
        "x-generated-tokens",
        "x-ignored-parameters",
    )
)
_MAX_AGE_SECONDS = "600"


class Cors:
    """
    Args:
        origins: origins that may call; none or `*` for any.
    """

    def __init__(self, origins: list[str]) -> None:
        self._any = not origins or "*" in origins
        self._origins = frozenset(origins)

    async def process_request(self, request: Request, response: Response) -> None:
        origin = request.get_header("origin")
        if not self._any:
            response.append_header("vary", "origin")  # also where the answer has no other trace of it
        if origin is None or not (self._any or origin in self._origins):
            return
        response.set_header("access-control-allow-origin", "*" if self._any else origin)
        if request.method == "OPTIONS" and request.get_header("access-control-request-method"):
            response.set_header("access-control-allow-methods", _ALLOW_METHODS)
            response.set_header("access-control-allow-headers", _ALLOW_HEADERS)
            response.set_header("access-control-max-age", _MAX_AGE_SECONDS)
            response.complete = True
        else:
            response.set_header("access-control-expose-headers", _EXPOSE_HEADERS)
