"""OpenTelemetry, as much of it as is used here: nothing else imports it.

Spans are made by hand, with their parents named. Ended ones are sent by a thread from a bounded queue (`OTEL_BSP_*`): a
collector that is slow or away costs spans, never requests. Which traces are kept is decided by their first span
(`OTEL_TRACES_SAMPLER`), whose decision travels with the trace.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from common import __version__
from common.errors import error_kind

log = logging.getLogger(__name__)

Kind = Literal["server", "internal", "producer", "consumer"]
Value = str | bool | int | float | list[str]
Attributes = Mapping[str, Value | None]
"""Those that are None are left out."""

STOP_SECONDS = 2.0
"""Spans that are not sent this long after the end are lost."""
TELL_SECONDS = 60.0
"""Between two warnings of a collector that takes nothing."""

_KINDS: dict[Kind, trace.SpanKind] = {
    "server": trace.SpanKind.SERVER,
    "internal": trace.SpanKind.INTERNAL,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
}
_W3C = TraceContextTextMapPropagator()


class Span:
    """One span under way; as a context manager it ends with the block. Moments are Unix nanoseconds."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    @property
    def headers(self) -> dict[str, str]:
        """W3C trace context for whatever this span is the parent of."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, self.context)
        return carrier

    @property
    def context(self) -> Context:
        return trace.set_span_in_context(self._span, Context())

    def set(self, attributes: Attributes) -> None:
        for name, value in attributes.items():
            if value is not None:
                self._span.set_attribute(name, value)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def fail(self, error_type: str) -> None:
        """What the span stands for went wrong. Only the kind of error is told: messages may quote what callers sent."""
        self._span.set_attribute("error.type", error_type)
        self._span.set_status(trace.StatusCode.ERROR)

    def end(self, at: int | None = None) -> None:
        """Now, or at a moment. Only ended spans are sent."""
        self._span.end(at)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(error_kind(error))
        self.end()


class _Exporter(OTLPSpanExporter):
    """Says itself, and rarely, that spans are lost: the library says it at each of its tries. Used by one thread."""

    _tell_at = 0.0

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        if not log.isEnabledFor(logging.DEBUG):
            logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        now = time.monotonic()
        if result is SpanExportResult.FAILURE and now >= self._tell_at:
            self._tell_at = now + TELL_SECONDS
            log.warning("the collector of traces does not answer, or refuses them: spans are lost")
        return result


class Tracing:
    """Makes this process's spans. Thread-safe; nothing here waits, save `stop`."""

    def __init__(self, exporter: SpanExporter, processor: SpanProcessor, resource: Resource) -> None:
        """
        Args:
            processor: hands ended spans to the exporter.
            resource: whose spans they are.
        """
        self._exporter = exporter
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tgq", __version__)

    @classmethod
    def exporting(cls, endpoint: str, *, name: str | None, part: str, instance: str) -> Tracing:
        """Sends spans to a URL.

        Args:
            name: of the service; default: by its part.
            part, instance: see `start_tracing`.
        """
        exporter = _Exporter(endpoint)
        return cls(exporter, BatchSpanProcessor(exporter), process_resource(name, part, instance))

    def begin(
        self,
        name: str,
        kind: Kind,
        parent: Span | Mapping[str, str] | None = None,
        attributes: Attributes | None = None,
        *,
        at: int | None = None,
    ) -> Span:
        """
        Args:
            parent: a span of this process, or the W3C trace context of another's; without a valid one a trace begins.
            at: Unix nanoseconds; default: now.
        """
        context = parent.context if isinstance(parent, Span) else _W3C.extract(parent or {}, Context())
        known = {name: value for name, value in (attributes or {}).items() if value is not None}
        return Span(self._tracer.start_span(name, context, _KINDS[kind], known, start_time=at))

    def stop(self) -> None:
        """Send what has ended, for `STOP_SECONDS` at most."""
        # The provider's own shutdown waits for as long as an export that is under way may take.
        stopping = threading.Thread(target=self._provider.shutdown, name="tracing-stop", daemon=True)
        stopping.start()
        stopping.join(STOP_SECONDS)
        if stopping.is_alive():
            self._exporter.shutdown()


def process_resource(name: str | None, part: str, instance: str) -> Resource:
    """What a process is in traces. Attributes in `OTEL_RESOURCE_ATTRIBUTES` go before ours, and a name before them."""
    ours = {
        "service.name": f"tgq-{part}",
        "service.version": __version__,
        "service.instance.id": instance,
        "tgq.part": part,
    }
    given = OTELResourceDetector().detect().attributes
    return Resource.create({**ours, **given, **({"service.name": name} if name else {})})
