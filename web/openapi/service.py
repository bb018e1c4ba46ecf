"""How the service is, and its documentation."""

from __future__ import annotations

from typing import Any

from common.errors import ServiceUnavailable, Unhealthy
from web.info import Info
from web.openapi.operation import Operation

TAG = "Service"


def _health(name: str, summary: str) -> Operation:
    return Operation(
        id=name,
        tag=TAG,
        summary=summary,
        description="200 without a body when a request sent now would be served.",
        errors=(Unhealthy, ServiceUnavailable),
    )


def _document(name: str) -> Operation:
    return Operation(id=name, tag=TAG, summary="This document", answer=dict[str, Any])


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("/", "get"): _health("root_health", "Whether requests are served"),
    ("/health", "get"): _health("health", "Whether requests are served"),
    ("/ping", "get"): _health("ping", "Whether requests are served, as SageMaker asks"),
    ("/info", "get"): Operation(
        id="info",
        tag=TAG,
        summary="The default model and this service's limits",
        answer=Info,
        errors=(ServiceUnavailable,),
    ),
    ("/metrics", "get"): Operation(
        id="metrics",
        tag=TAG,
        summary="Everything counted, for Prometheus",
        description="All web processes of this host and all engines, in Prometheus' text format.",
        answer=str,
        media_type="text/plain",
    ),
    ("/openapi.json", "get"): _document("openapi"),
    ("/api-doc/openapi.json", "get"): _document("openapi_as_tgi"),
    ("/docs", "get"): Operation(
        id="docs", tag=TAG, summary="This document as a page", answer=str, media_type="text/html"
    ),
}
