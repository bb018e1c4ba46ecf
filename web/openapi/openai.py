"""OpenAI's routes."""

from __future__ import annotations

from typing import Any

from common.errors import ServiceUnavailable, TemplateError, UnknownModel
from common.protocols.openai_chat_answer import ChatCompletion
from common.protocols.openai_chat_answer import Chunk as ChatChunk
from common.protocols.openai_chat_request import ChatRequest
from common.protocols.openai_completion_answer import Completion
from common.protocols.openai_completion_request import CompletionRequest
from common.protocols.openai_models import Model, ModelList
from web.openapi.operation import GENERATION_ERRORS, PROMPT_HEADERS, TIMING_HEADERS, Operation

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
        errors=(*GENERATION_ERRORS, TemplateError, UnknownModel),
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
        errors=(*GENERATION_ERRORS, UnknownModel),
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
}
