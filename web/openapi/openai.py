"""OpenAI's routes."""

from __future__ import annotations

from typing import Any

from common.errors import ServiceUnavailable, TemplateError, UnknownModel, UnknownRequest
from common.protocols.openai_chat_answer import ChatCompletion
from common.protocols.openai_chat_answer import Chunk as ChatChunk
from common.protocols.openai_chat_request import ChatRequest
from common.protocols.openai_completion_answer import Completion
from common.protocols.openai_completion_request import CompletionRequest
from common.protocols.openai_models import Model, ModelList
from web.openapi.operation import GENERATION_ERRORS, PROMPT_HEADERS, TIMING_HEADERS, Operation
from web.resources.requests import CancelledRequest

TAG = "OpenAI"

CHAT_EXAMPLE: dict[str, Any] = {
    "model": "tgi",
    "messages": [{"role": "user", "content": "What is a queue?"}],
    "max_tokens": 40,
}
_COMPLETION_EXAMPLE: dict[str, Any] = {"model": "tgi", "prompt": "A queue is", "max_tokens": 20}

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("/v1/chat/completions", "post"): Operation(
        id="chat_completions",
        tag=TAG,
        summary="Answer a chat, whole or streamed",
        description=(
            "`tgi`, `dummy`, an empty name and an address mean the default model. A stream begins with the role, ends each "
            "choice with its finish reason, and tells usage where `stream_options` ask for it."
        ),
        body=ChatRequest,
        answer=ChatCompletion,
        events=ChatChunk,
        done=True,
        headers=PROMPT_HEADERS,
        whole_headers=TIMING_HEADERS,
        idempotent=True,
        errors=(*GENERATION_ERRORS, TemplateError),
        example=CHAT_EXAMPLE,
    ),
    ("/v1/completions", "post"): Operation(
        id="completions",
        tag=TAG,
        summary="Go on from a prompt, whole or streamed",
        description="Several prompts are answered at once; a choice's index tells whose it is.",
        body=CompletionRequest,
        answer=Completion,
        events=Completion,
        done=True,
        headers=PROMPT_HEADERS,
        whole_headers=TIMING_HEADERS,
        idempotent=True,
        errors=GENERATION_ERRORS,
        example=_COMPLETION_EXAMPLE,
    ),
    ("/v1/models", "get"): Operation(
        id="models",
        tag=TAG,
        summary="The models and adapters served",
        answer=ModelList,
        errors=(ServiceUnavailable,),
    ),
    ("/v1/models/{name:path}", "get"): Operation(
        id="model",
        tag=TAG,
        summary="One model or adapter",
        description="The name may hold slashes.",
        answer=Model,
        errors=(UnknownModel, ServiceUnavailable),
    ),
    ("/v1/requests/{request_id}", "delete"): Operation(
        id="cancel_request",
        tag=TAG,
        summary="Cancel a request by its id",
        description=(
            "The id is that in the `x-request-id` of its answer. Waiting or running, streamed or not, at any web node: a "
            "whole answer becomes error 499, a stream ends with that error. Where several requests have the id, all are "
            "cancelled; where none has it any more, it is 404. When a web node that may have it does not answer, it is 503."
        ),
        answer=CancelledRequest,
        errors=(UnknownRequest, ServiceUnavailable),
    ),
}
