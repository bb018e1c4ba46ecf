"""From a conversation to the messages that one template understands."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from common.chat_message import Message, PastCall, Role
from common.template_traits import TemplateTraits

INTRODUCTION = (
    "You may call one or more of these functions to help with what you are asked for. Call one only where it helps; "
    "otherwise answer in words."
)


def with_tools(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    tool_prompt: str | None,
    traits: TemplateTraits,
    *,
    takes_system: bool,
) -> list[Message]:
    """The conversation with whatever the template itself does not say about the tools.

    Args:
        takes_system: else the words go before the user's first ones.
    """
    words = []
    if not traits.knows_tools:
        words.append(tool_prompt or INTRODUCTION)
        words.append("<tools>\n" + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools) + "\n</tools>")
    elif tool_prompt:
        words.append(tool_prompt)
    if not traits.explains_format:
        words.append(traits.format.note)
    if not words:
        return list(messages)
    role: Role = "system" if takes_system else "user"
    for place, message in enumerate(messages):
        if message.role == role:
            texts = [message.text, *words] if role == "system" else [*words, message.text]
            told = msgspec.structs.replace(message, texts=["\n\n".join(text for text in texts if text)])
            return [*messages[:place], told, *messages[place + 1 :]]
    return [Message(role=role, texts=["\n\n".join(words)]), *messages]


def turns(messages: Sequence[Message], traits: TemplateTraits) -> list[dict[str, Any]]:
    """Messages as the template takes them; calls and results in words where it has no place for them."""
    if not traits.knows_calls:
        messages = [_call_in_words(message) for message in messages]
    if not traits.knows_results:
        messages = _results_in_words(messages)
    return [_turn(message, traits) for message in messages]


def _turn(message: Message, traits: TemplateTraits) -> dict[str, Any]:
    content = [{"type": "text", "text": text} for text in message.texts] if traits.takes_parts else message.text
    turn: dict[str, Any] = {"role": message.role, "content": content}
    if message.name is not None:
        turn["name"] = message.name
    if message.reasoning is not None:
        # By the name that most templates read, and by that of gpt-oss.
        turn["reasoning_content"] = turn["thinking"] = message.reasoning
    if message.calls:
        turn["tool_calls"] = [_call(call, traits) for call in message.calls]
    if message.call_id is not None:
        turn["tool_call_id"] = _id(message.call_id, traits)
    return turn


def _call(call: PastCall, traits: TemplateTraits) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": _id(call.id, traits), "type": "function", "function": function}


def _id(call_id: str, traits: TemplateTraits) -> str:
    if not traits.short_ids or re.fullmatch("[a-zA-Z0-9]{9}", call_id):
        return call_id
    return hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:9]


def _call_in_words(message: Message) -> Message:
    if not message.calls:
        return message
    calls = [
        f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments}, ensure_ascii=False)}\n</tool_call>"
        for call in message.calls
    ]
    words = "\n".join([message.text, *calls] if message.text else calls)
    return msgspec.structs.replace(message, texts=[words], calls=[])


def _results_in_words(messages: Sequence[Message]) -> list[Message]:
    """Results as the user's words, those of one answer's calls together, so that roles still alternate."""
    told: list[Message] = []
    before: Message | None = None
    for message in messages:
        if message.role == "tool":
            words = f"<tool_response>\n{message.text}\n</tool_response>"
            if before is not None and before.role == "tool":
                words = told.pop().text + "\n" + words
            told.append(Message(role="user", texts=[words]))
        else:
            told.append(message)
        before = message
    return told
