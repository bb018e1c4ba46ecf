"""A collector of traces in this process: OTLP over HTTP, protobuf, and nothing behind it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

POLL_SECONDS = 0.02


@dataclass(frozen=True)
class ReceivedSpan:
    """One span; times in Unix nanoseconds, ids in hexadecimal digits, `parent` empty for the first of a trace."""

    trace: str
    id: str
    parent: str
    name: str
    kind: str
    begin: int
    end: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    failed: bool

    @property
    def service(self) -> str:
        return str(self.resource["service.name"])


class OtlpReceiver:
    """Keeps every span it is sent, and the bytes they came in."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.spans: list[ReceivedSpan] = []
        self._dead = False
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                if receiver._dead:
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers["content-length"]))
                right = self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
                if right:
                    receiver._take(body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200 if right else 404)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever, args=(POLL_SECONDS,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.die()

    def die(self) -> None:
        """Answer nobody any more, not on connections that are open either; idempotent."""
        if not self._dead:
            self._dead = True
            self._server.shutdown()
            self._server.server_close()

    def trace(
        self, trace_id: str, complete: Callable[[list[ReceivedSpan]], object], seconds: float = 15.0
    ) -> list[ReceivedSpan]:
        """The spans of one trace, oldest first, once they are `complete`."""
        give_up_at = time.monotonic() + seconds
        while True:
            found = sorted((span for span in list(self.spans) if span.trace == trace_id), key=lambda span: span.begin)
            if complete(found):
                return found
            assert time.monotonic() < give_up_at, f"incomplete after {seconds:g} s: {[span.name for span in found]}"
            time.sleep(POLL_SECONDS)

    def _take(self, body: bytes) -> None:
        self.bodies.append(body)
        for of_process in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _attributes(of_process.resource.attributes)
            for of_scope in of_process.scope_spans:
                self.spans.extend(_span(span, resource) for span in of_scope.spans)


def _span(span: WireSpan, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        name=span.name,
        kind=WireSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        begin=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        resource=resource,
        failed=span.status.code == Status.STATUS_CODE_ERROR,
    )


def _attributes(attributes: Any) -> dict[str, Any]:
    found: list[KeyValue] = list(attributes)
    return {attribute.key: _value(attribute.value) for attribute in found}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(entry) for entry in value.array_value.values]
    return None if kind is None else getattr(value, kind)
