"""The Open Inference Protocol's routes."""

from __future__ import annotations

from typing import Any

from common.errors import ServiceUnavailable, Unhealthy, UnknownModel, UnknownModelVersion
from common.protocols import open_inference_answer as answers
from common.protocols.open_inference_request import GenerateRequest
from web.openapi.operation import GENERATION_ERRORS, PROMPT_HEADERS, TIMING_HEADERS, Errors, Operation

TAG = "Open Inference Protocol"

_UNKNOWN: Errors = (UnknownModel, UnknownModelVersion, ServiceUnavailable)
_EXAMPLE: dict[str, Any] = {"text_input": "What is a queue?", "parameters": {"max_tokens": 20, "details": True}}
_MODEL = "/v2/models/{model}"
_VERSION = "/v2/models/{model}/versions/{version}"


def _generate(name: str, summary: str) -> Operation:
    return Operation(
        id=name,
        tag=TAG,
        summary=summary,
        body=GenerateRequest,
        answer=answers.GenerateResponse,
        headers=PROMPT_HEADERS,
        whole_headers=TIMING_HEADERS,
        idempotent=True,
        errors=GENERATION_ERRORS + _UNKNOWN,
        example=_EXAMPLE,
    )


def _generate_stream(name: str, summary: str) -> Operation:
    return Operation(
        id=name,
        tag=TAG,
        summary=summary,
        body=GenerateRequest,
        events=answers.StreamResponse,
        headers=PROMPT_HEADERS,
        errors=GENERATION_ERRORS + _UNKNOWN,
        example=_EXAMPLE,
    )


def _get(name: str, summary: str, answer: Any, errors: Errors = ()) -> Operation:
    return Operation(id=name, tag=TAG, summary=summary, answer=answer, errors=errors)


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("/v2", "get"): _get("server_metadata", "What this server is", answers.ServerMetadata),
    ("/v2/health/live", "get"): _get("server_live", "Whether this process answers", answers.ServerLive),
    ("/v2/health/ready", "get"): _get(
        "server_ready", "Whether requests are served", answers.ServerReady, (Unhealthy, ServiceUnavailable)
    ),
    ("/v2/models", "get"): _get(
        "model_list", "The models and adapters served", answers.ModelList, (ServiceUnavailable,)
    ),
    (_MODEL, "get"): _get("model_metadata", "What a model is", answers.ModelMetadata, _UNKNOWN),
    (_VERSION, "get"): _get("model_version_metadata", "What a model is", answers.ModelMetadata, _UNKNOWN),
    (f"{_MODEL}/ready", "get"): _get(
        "model_ready", "Whether a worker has a model loaded", answers.ModelReady, (*_UNKNOWN, Unhealthy)
    ),
    (f"{_VERSION}/ready", "get"): _get(
        "model_version_ready", "Whether a worker has a model loaded", answers.ModelReady, (*_UNKNOWN, Unhealthy)
    ),
    (f"{_MODEL}/generate", "post"): _generate("model_generate", "Generate a whole answer"),
    (f"{_VERSION}/generate", "post"): _generate("model_version_generate", "Generate a whole answer"),
    (f"{_MODEL}/generate_stream", "post"): _generate_stream("model_generate_stream", "Generate token by token"),
    (f"{_VERSION}/generate_stream", "post"): _generate_stream(
        "model_version_generate_stream", "Generate token by token"
    ),
}
