"""The body of `/invocations`, as SageMaker's clients send it: that of `/`, of a chat or of a completion."""

from __future__ import annotations

from typing import Any

from common.errors import InvalidRequest
from common.protocols.json_body import RequestModel, parse_body
from common.protocols.openai_chat_request import ChatRequest
from common.protocols.openai_completion_request import CompletionRequest
from common.protocols.tgi_request import CompatGenerateRequest


class _Kind(RequestModel):
    inputs: Any = None
    messages: Any = None
    prompt: Any = None


def read_invocation(body: bytes) -> CompatGenerateRequest | ChatRequest | CompletionRequest:
    """The request that the body's keys make it, in TGI's order: `inputs`, then `messages`, then `prompt`.

    Raises:
        MalformedBody: see `parse_body`.
        InvalidRequest: it has none of those keys, or is wrong for what it is.
    """
    kind = parse_body(_Kind, body)
    if kind.inputs is not None:
        return parse_body(CompatGenerateRequest, body)
    if kind.messages is not None:
        return parse_body(ChatRequest, body)
    if kind.prompt is not None:
        return parse_body(CompletionRequest, body)
    raise InvalidRequest("`inputs`, `messages` or `prompt` is required")
