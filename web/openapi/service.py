"""How the service is, and its documentation."""

from __future__ import annotations

from typing import Any

from common.errors import RouteNotFound, ServiceUnavailable, Unhealthy
from web.health import Startup
from web.info import Info
from web.openapi.operation import Operation
from web.playground_status import PlaygroundStatus

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
    ("/health/live", "get"): Operation(
        id="live",
        tag=TAG,
        summary="Whether this process answers",
        description="200 without a body; models, workers and Redis have no part in it.",
    ),
    ("/health/ready", "get"): _health("ready", "Whether requests are served, and what is missing if not"),
    ("/health/startup", "get"): Operation(
        id="startup", tag=TAG, summary="How far the workers are with loading the model", answer=Startup, unready=True
    ),
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
    ("/playground", "get"): Operation(
        id="playground", tag=TAG, summary="A page to try the models on", answer=str, media_type="text/html"
    ),
    ("/playground/{file}", "get"): Operation(
        id="playground_file",
        tag=TAG,
        summary="Scripts and styles of that page",
        answer=str,
        media_type="*/*",
        errors=(RouteNotFound,),
    ),
    ("/playground/status", "get"): Operation(
        id="playground_status",
        tag=TAG,
        summary="Queue and workers of each model, as that page shows them",
        answer=PlaygroundStatus,
        errors=(ServiceUnavailable,),
    ),
}
