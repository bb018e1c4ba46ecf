"""Whether this process traces, and where to. What makes and sends spans is loaded only when it does."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from common.settings import Settings

if TYPE_CHECKING:
    from common.tracing.tracing import Tracing

log = logging.getLogger(__name__)

_PATH = "/v1/traces"
_GRPC_PORT, _HTTP_PORT = 4317, 4318


def start_tracing(settings: Settings, part: str, instance: str) -> Tracing | None:
    """Tracing of this process, or None without an endpoint.

    Args:
        part: what the process is: `web`, `worker`, `batch-worker`.
        instance: unique name of the process.
    """
    endpoint = traces_endpoint(settings.otlp_endpoint, os.environ)
    if endpoint is None:
        return None
    from common.tracing.tracing import Tracing

    return Tracing.exporting(endpoint, name=settings.otlp_service_name, part=part, instance=instance)


def traces_endpoint(base: str | None, environment: Mapping[str, str]) -> str | None:
    """The URL that spans are sent to by OTLP over HTTP; None for nowhere. Warns of what cannot be done as it is set.

    Args:
        base: without the path of traces, which is appended where it is missing.
        environment: for OpenTelemetry's own variables.
    """
    exporters = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporters == "none" or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exact = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if not (exact or base):
        return None
    if exporters not in ("", "otlp"):
        log.warning("OTEL_TRACES_EXPORTER=%s: traces are sent by OTLP alone", exporters)
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in (None, "", "http/protobuf"):
        log.warning("OTEL_EXPORTER_OTLP_PROTOCOL=%s: traces are sent by http/protobuf alone", protocol)
    if exact:
        return exact
    assert base is not None
    base = base.rstrip("/")
    if base.endswith(_PATH):
        return base
    parts = urlsplit(base)
    if parts.port == _GRPC_PORT:
        # What was set for TGI, which speaks gRPC: collectors listen for HTTP one port further.
        log.warning("OTLP_ENDPOINT names port %d, that of gRPC: traces go to %d, by HTTP", _GRPC_PORT, _HTTP_PORT)
        base = parts._replace(netloc=parts.netloc.removesuffix(f"{_GRPC_PORT}") + f"{_HTTP_PORT}").geturl()
    return base + _PATH
