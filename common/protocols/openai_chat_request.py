"""The body of `/v1/chat/completions`."""

from __future__ import annotations

from typing import Any, ClassVar

from common.protocols.json_body import UInt32
from common.protocols.openai_request import OpenAIRequest


class ChatRequest(OpenAIRequest):
    """Messages, tools and formats are read by modules of their own, which name the place of an error."""

    refused: ClassVar[frozenset[str]] = frozenset(
        ("audio", "chat_template", "function_call", "functions", "moderation", "prediction", "web_search_options")
    )

    messages: list[Any]
    logprobs: bool = False
    max_completion_tokens: UInt32 | None = None
    modalities: list[str] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    reasoning_effort: str | None = None
    """A variable of the chat template; most have none of this name."""
    response_format: Any = None
    safety_identifier: str | None = None
    tool_choice: Any = None
    tools: list[Any] | None = None
    top_logprobs: UInt32 | None = None
    verbosity: str | None = None

    # not OpenAI's
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """More variables of the chat template."""
    continue_final_message: bool | None = None
    guideline: str | None = None
    """TGI's: a variable of the chat template."""
    tool_prompt: str | None = None
    """TGI's: words before the tools, where the chat template knows none."""
