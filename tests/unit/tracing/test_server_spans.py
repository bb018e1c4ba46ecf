"""The HTTP span of a request, over ASGI applications that answer in every way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from common.tracing.tracing import Tracing
from web.disconnect import ASGIApp, DisconnectWatch, Receive, RequestLifetime, Scope, Send
from web.server_spans import ServerSpans, server_span, trace_context


def scope(path: str = "/generate", method: str = "POST", headers: Mapping[str, str] | None = None) -> Scope:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "scheme": "http",
        "http_version": "1.1",
        "server": ("127.0.0.1", 3000),
        "query_string": b"key=private",
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
    }


async def run(app: ASGIApp, tracing: Tracing, request: Scope) -> None:
    async def receive() -> Mapping[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        pass

    await ServerSpans(DisconnectWatch(app, send_timeout=5), tracing)(request, receive, send)


def answering(status: int) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": False})

    return app


def only(exporter: InMemorySpanExporter) -> tuple[ReadableSpan, dict[str, Any]]:
    (span,) = exporter.get_finished_spans()
    return span, dict(span.attributes or {})


@pytest.mark.parametrize(("status", "error"), [(200, None), (422, None), (503, "503")])
async def test_statuses(status: int, error: str | None, tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    await run(answering(status), tracing, scope())
    span, told = only(exporter)
    assert told["http.response.status_code"] == status
    assert told.get("error.type") == error
    assert span.status.is_unset == (error is None)
    assert told["url.path"] == "/generate"
    assert told["server.port"] == 3000
    assert "private" not in span.to_json()


@pytest.mark.parametrize(
    ("path", "method"),
    [("/health", "GET"), ("/metrics", "GET"), ("/", "GET"), ("/v2/health/live", "GET"), ("/generate", "OPTIONS")],
)
async def test_what_comes_all_the_time_is_left_out(
    path: str, method: str, tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    request = scope(path, method)
    await run(answering(200), tracing, request)
    assert server_span(request) is None
    assert not exporter.get_finished_spans()


async def test_methods_nobody_knows_make_no_names(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    await run(answering(405), tracing, scope(method="FROBNICATE"))
    span, told = only(exporter)
    assert (span.name, told["http.request.method"]) == ("HTTP", "_OTHER")


async def test_a_client_that_leaves(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        RequestLifetime.of(scope).watch()
        await asyncio.sleep(30)

    await run(app, tracing, scope())
    span, told = only(exporter)
    assert told["error.type"] == "client_closed"
    assert "http.response.status_code" not in told
    assert span.status.is_unset


async def test_an_application_that_breaks(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("private")

    with pytest.raises(ValueError, match="private"):
        await run(app, tracing, scope())
    span, told = only(exporter)
    assert told["error.type"] == "ValueError"
    assert "private" not in span.to_json()


def test_the_context_a_client_sends() -> None:
    request = scope()
    request["headers"] = [(b"tracestate", b"a=1"), (b"traceparent", b"00-1-2-01"), (b"tracestate", b"b=2")]
    assert trace_context(request) == {"tracestate": "a=1,b=2", "traceparent": "00-1-2-01"}
    request["headers"] = [(b"traceparent", b"x" * 513)]
    assert trace_context(request) == {}
