"""Lets browsers call: preflight requests, and headers on every answer, errors and streams included."""

from __future__ import annotations

import re

from falcon.asgi import Request, Response

_ALLOW_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
_ALLOW_HEADERS = frozenset(
    (
        "authorization",
        "content-type",
        "idempotency-key",
        "last-event-id",
        "x-request-id",
        "x-request-timeout",
        "x-tgq-resume",
        "traceparent",
        "tracestate",
    )
)
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
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
        "idempotent-replayed",
    )
)
_MAX_AGE_SECONDS = "600"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9-]+(\s*,\s*[A-Za-z0-9-]+)*")
_LONGEST_ASKED = 2000


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
            asked = request.get_header("access-control-request-headers") or ""
            response.set_header("access-control-allow-headers", _allowed_headers(asked))
            response.set_header("access-control-max-age", _MAX_AGE_SECONDS)
            response.complete = True
        else:
            response.set_header("access-control-expose-headers", _EXPOSE_HEADERS)


def _allowed_headers(asked: str) -> str:
    """Ours and those asked for: clients' libraries send many of their own, and none has power here."""
    plain = len(asked) <= _LONGEST_ASKED and _HEADER_NAMES.fullmatch(asked)
    more = {name.strip().lower() for name in asked.split(",")} if plain else set()
    return ", ".join(sorted(_ALLOW_HEADERS | more))
