"""The first span of a request's trace in this service: HTTP, from its first line to the last byte of its answer.

Only installed where traces are made. Probes, metrics and pages are left out: they come all the time and tell nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from falcon.asgi import Request, Response

from common.errors import error_kind
from web.disconnect import ASGIApp, Receive, RequestLifetime, Scope, Send

if TYPE_CHECKING:
    from common.tracing.tracing import Span, Tracing

_KEY = "tgq.span"
_TRACE_HEADERS = (b"traceparent", b"tracestate")
_LONGEST_TRACE_HEADER = 512
_LONGEST_AGENT = 256
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY"}
_UNTRACED = ("/health", "/ping", "/metrics", "/v2/health", "/playground", "/docs", "/openapi.json", "/api-doc")


def server_span(scope: Scope) -> Span | None:
    """The span of a request that is traced."""
    return scope.get(_KEY)


def trace_context(scope: Scope) -> dict[str, str]:
    """The W3C trace context that a client sent, as it is; several headers of one name are one list."""
    given: dict[bytes, list[bytes]] = {}
    for name, value in scope.get("headers", ()):
        if name in _TRACE_HEADERS:
            given.setdefault(name, []).append(value)
    context = {name.decode(): b",".join(values).decode("latin-1") for name, values in given.items()}
    return {name: value for name, value in context.items() if len(value) <= _LONGEST_TRACE_HEADER}


class ServerSpans:
    """ASGI wrapper around the application that has the requests' lifetimes."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _untraced(scope):
            await self._app(scope, receive, send)
            return
        name = _method(scope)
        span = scope[_KEY] = self._tracing.begin(name, "server", trace_context(scope), request_attributes(scope))
        answer = _Answer(send)
        try:
            await self._app(scope, receive, answer.send)
        except BaseException as error:
            span.fail(error_kind(error))
            raise
        finally:
            if answer.status is not None:
                span.set({"http.response.status_code": answer.status})
                if answer.status >= 500:
                    span.fail(str(answer.status))
            if not answer.complete and (gone := RequestLifetime.of(scope).gone) is not None:
                span.set({"error.type": gone})
            span.end(answer.complete_at)


class RouteNames:
    """Middleware that names each span by its route, once that is known."""

    async def process_resource(
        self, request: Request, response: Response, resource: object, params: dict[str, Any]
    ) -> None:
        span = server_span(request.scope)
        if span is not None:
            span.rename(f"{_method(request.scope)} {request.uri_template}")
            span.set({"http.route": request.uri_template})


class _Answer:
    """What has been sent of one answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None
        self.complete_at: int | None = None
        """Unix nanoseconds."""

    @property
    def complete(self) -> bool:
        return self.complete_at is not None

    async def send(self, message: dict[str, Any]) -> None:
        await self._send(message)
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete_at = time.time_ns()


def request_attributes(scope: Mapping[str, Any]) -> dict[str, str | int | None]:
    """What is known of a request before it is routed. Not its query, which may hold anything."""
    host, port = scope.get("server") or (None, None)
    headers = dict(scope.get("headers", ()))
    agent = headers.get(b"user-agent")
    return {
        "http.request.method": _method(scope, other="_OTHER"),
        "url.path": scope["path"],
        "url.scheme": scope.get("scheme", "http"),
        "server.address": host,
        "server.port": port,
        "network.protocol.version": scope.get("http_version"),
        "user_agent.original": agent.decode("latin-1")[:_LONGEST_AGENT] if agent else None,
    }


def _method(scope: Mapping[str, Any], other: str = "HTTP") -> str:
    method: str = scope["method"]
    return method if method in _METHODS else other


def _untraced(scope: Scope) -> bool:
    path, method = scope["path"], scope["method"]
    return path.startswith(_UNTRACED) or method == "OPTIONS" or (path == "/" and method in ("GET", "HEAD"))
