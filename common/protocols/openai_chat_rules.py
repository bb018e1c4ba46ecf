"""Rules of `/v1/chat/completions`, and what a chat request asks for by them."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Struct

from common.chat_message import Message
from common.chat_template import ChatTemplate
from common.errors import InvalidRequest
from common.protocols import openai_rules
from common.protocols.chat_messages import read_messages
from common.protocols.openai_answer import Head, Stops
from common.protocols.openai_chat_answer import ChatAnswer
from common.protocols.openai_chat_request import ChatRequest
from common.protocols.response_format import read_response_format
from common.protocols.tools import ToolUse, read_tools
from common.settings import Settings
from common.validation import SHORT_TEXT, Ask, ValidRequest

SHORT_MESSAGES = 8


class Conversation(Struct, frozen=True):
    """What a chat request says, read."""

    messages: list[Message]
    tools: ToolUse | None

    @property
    def characters(self) -> int:
        return sum(len(text) for message in self.messages for text in message.texts)


def choices(request: ChatRequest) -> int:
    return 1 if request.n is None else request.n


def is_short(request: ChatRequest) -> bool:
    """Whether reading and rendering it takes about as long as waking a thread for it: a few plain messages."""
    if request.tools or request.chat_template_kwargs or len(request.messages) > SHORT_MESSAGES:
        return False
    texts = [message.get("content") for message in request.messages if isinstance(message, dict)]
    return sum(len(text) if isinstance(text, str) else SHORT_TEXT + 1 for text in texts) <= SHORT_TEXT


def check_combination(request: ChatRequest, settings: Settings) -> None:
    """Rules that need no permit.

    Raises:
        InvalidRequest: says what is not done here, or does not go together.
    """
    openai_rules.check_combination(request, settings, choices=choices(request), sequences=choices(request))
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("`top_logprobs` needs `logprobs` to be true")
    if request.modalities is not None and request.modalities != ["text"]:
        raise InvalidRequest('`modalities` must be ["text"]: the models here speak text only')
    if request.verbosity not in (None, "medium"):
        raise InvalidRequest("`verbosity` must be medium: the models here have no other")
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) == 2:
        raise InvalidRequest("`max_tokens` and `max_completion_tokens` are the same thing and must be equal")


def read_conversation(request: ChatRequest) -> Conversation:
    """
    Raises:
        InvalidRequest: names the place in the messages or tools.
    """
    tools = read_tools(request.tools, request.tool_choice, parallel=request.parallel_tool_calls)
    return Conversation(read_messages(request.messages), tools)


def prompt(
    request: ChatRequest, conversation: Conversation, template: ChatTemplate, cpu_seconds: float | None = None
) -> str:
    """The conversation in the model's own form. CPU-bound.

    Args:
        cpu_seconds: see `ChatTemplate.render`.

    Raises:
        TooSlow: it needs more.
        TemplateError: the model cannot chat, or its template refuses the conversation.
        InvalidRequest: variables are given that are none, or flags that do not go together.
    """
    variables: dict[str, Any] = {"guideline": request.guideline, "reasoning_effort": request.reasoning_effort}
    return template.render(
        conversation.messages,
        tools=conversation.tools.shown if conversation.tools else (),
        tool_prompt=request.tool_prompt,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        variables={name: value for name, value in variables.items() if value is not None}
        | (request.chat_template_kwargs or {}),
        cpu_seconds=cpu_seconds,
    )


def ask(
    request: ChatRequest,
    conversation: Conversation,
    rendered: str,
    template: ChatTemplate,
    settings: Settings,
    adapter: str | None = None,
) -> Ask:
    """Apply the rules of value. Without a limit the answer may fill the context, as in TGI 3 and OpenAI's API.

    Args:
        rendered: what `prompt` made of the conversation.

    Raises:
        InvalidRequest: names the first rule broken, with its limit.
    """
    top_tokens = request.top_logprobs or 0
    openai_rules.check_top_logprobs("top_logprobs", top_tokens, settings)
    limit = request.max_completion_tokens if request.max_tokens is None else request.max_tokens
    grammar, tools = read_response_format(request.response_format), conversation.tools
    names = {"inputs": "messages"}
    if tools is not None:
        if grammar is not None:
            raise InvalidRequest("`response_format` and `tools` cannot be used together")
        grammar = partial(tools.grammar, template.tool_format)
        names["grammar"] = "tools"
    if request.max_tokens is None:
        names["max_new_tokens"] = "max_completion_tokens"
    return Ask(
        prompt=rendered,
        parameters=openai_rules.parameters(
            request,
            settings,
            max_new_tokens=1 if limit is None else limit,
            top_tokens=top_tokens,
            choices=choices(request),
        ),
        fills_context=limit is None,
        special_tokens=False,
        grammar=grammar,
        adapter=adapter,
        names=openai_rules.NAMES | names,
    )


def answer(
    request: ChatRequest,
    conversation: Conversation,
    valid: ValidRequest,
    template: ChatTemplate,
    head: Head,
    call_key: str,
) -> ChatAnswer:
    """What the answer to the request shows.

    Args:
        call_key: unguessable; part of the ids of tool calls.
    """
    return ChatAnswer(
        head=head,
        choices=valid.parameters.children,
        prompt_tokens=len(valid.prompt_ids),
        stops=Stops(request.stops, request.include_stop_str_in_output),
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        tool_format=template.tool_format if conversation.tools else None,
        call_key=call_key,
        usage=openai_rules.usage_report(request),
    )
