"""TGI's own routes."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from common.errors import ServiceUnavailable, TemplateError, UnknownModel
from common.protocols.openai_chat_answer import ChatCompletion
from common.protocols.openai_chat_answer import Chunk as ChatChunk
from common.protocols.openai_chat_request import ChatRequest
from common.protocols.openai_completion_answer import Completion
from common.protocols.openai_completion_request import CompletionRequest
from common.protocols.tgi_answer import GenerateResponse, SimpleToken, StreamEvent
from common.protocols.tgi_request import CompatGenerateRequest, GenerateRequest, TokenizeRequest
from web.openapi.openai import CHAT_EXAMPLE
from web.openapi.operation import BODY_ERRORS, GENERATION_ERRORS, PROMPT_HEADERS, TIMING_HEADERS, Operation

TAG = "Text Generation Inference"

_EXAMPLE: dict[str, Any] = {"inputs": "What is a queue?", "parameters": {"max_new_tokens": 20, "details": True}}


class ChatTokenizeResponse(Struct):
    """Written piece by piece where it is sent."""

    tokenize_response: list[SimpleToken]
    templated_text: str
    """The prompt that the model's chat template makes of the body."""


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("/", "post"): Operation(
        id="generate_or_stream",
        tag=TAG,
        summary="Generate, whole or streamed",
        description="The way most clients take. `stream` decides: without it the answer is an array of one.",
        body=CompatGenerateRequest,
        answer=list[GenerateResponse],
        events=StreamEvent,
        headers=PROMPT_HEADERS,
        whole_headers=TIMING_HEADERS,
        idempotent=True,
        errors=GENERATION_ERRORS,
        example=_EXAMPLE,
    ),
    ("/generate", "post"): Operation(
        id="generate",
        tag=TAG,
        summary="Generate a whole answer",
        body=GenerateRequest,
        answer=GenerateResponse,
        headers=PROMPT_HEADERS,
        whole_headers=TIMING_HEADERS,
        idempotent=True,
        errors=GENERATION_ERRORS,
        example=_EXAMPLE,
    ),
    ("/generate_stream", "post"): Operation(
        id="generate_stream",
        tag=TAG,
        summary="Generate token by token",
        description="One event for each token; the last one carries the whole text and, where asked for, the details.",
        body=GenerateRequest,
        events=StreamEvent,
        headers=PROMPT_HEADERS,
        errors=GENERATION_ERRORS,
        example=_EXAMPLE,
    ),
    ("/tokenize", "post"): Operation(
        id="tokenize",
        tag=TAG,
        summary="The tokens of a prompt",
        description="With their places in it, as byte offsets. Generates nothing and takes no place in the queue.",
        body=TokenizeRequest,
        answer=list[SimpleToken],
        errors=BODY_ERRORS,
        example={"inputs": "What is a queue?"},
    ),
    ("/chat_tokenize", "post"): Operation(
        id="chat_tokenize",
        tag=TAG,
        summary="The prompt that a chat becomes, and its tokens",
        description="Reads what is for the chat template; the rest of the body has no effect.",
        body=ChatRequest,
        answer=ChatTokenizeResponse,
        errors=(*BODY_ERRORS, TemplateError, UnknownModel, ServiceUnavailable),
        example=CHAT_EXAMPLE,
    ),
    ("/invocations", "post"): Operation(
        id="invocations",
        tag=TAG,
        summary="What SageMaker's clients call",
        description="The body is that of `/`, of a chat or of a completion; its keys decide, and so is the answer.",
        body=(CompatGenerateRequest, ChatRequest, CompletionRequest),
        answer=(list[GenerateResponse], ChatCompletion, Completion),
        events=(StreamEvent, ChatChunk, Completion),
        headers=PROMPT_HEADERS,
        whole_headers=TIMING_HEADERS,
        idempotent=True,
        errors=(*GENERATION_ERRORS, TemplateError, UnknownModel),
        example=_EXAMPLE,
    ),
}
