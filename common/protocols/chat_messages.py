"""From the messages of a chat request to a conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from common.chat_message import Message, PastCall, Role
from common.errors import InvalidRequest

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_TEXT_PARTS = {"text": "text", "refusal": "refusal"}
"""Types of parts and the key that has their text."""
_REASONING = ("reasoning_content", "reasoning")


def read_messages(messages: Sequence[Any], field: str = "messages") -> list[Message]:
    """Check and normalise OpenAI's messages (plain JSON values).

    `developer` is `system`, and one turn with the system message next to it. Content is a string or text parts. A null is
    an absent key. Arguments of past calls are objects in JSON, or as they are. A function's answer without a `name` gets that
    of the call it answers. Keys that mean nothing to a model (`annotations`, ...) have no effect.

    Raises:
        InvalidRequest: names the place, such as `messages.2.content.0`.
    """
    if not messages:
        raise InvalidRequest(f"`{field}` must hold at least one message")
    result: list[Message] = []
    names: dict[str, str] = {}
    before = None
    for place, value in enumerate(messages):
        path = f"{field}.{place}"
        if not isinstance(value, dict):
            raise InvalidRequest(f"`{path}` must be an object")
        given = value.get("role")
        message = _read_message(value, path)
        names.update((call.id, call.name) for call in message.calls)
        if message.role == "tool" and message.name is None and message.call_id is not None:
            message = msgspec.structs.replace(message, name=names.get(message.call_id))
        if {before, given} == {"system", "developer"} or before == given == "developer":
            message = _joined(result.pop(), message)
        result.append(message)
        before = given
    return result


def _read_message(value: dict[str, Any], path: str) -> Message:
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequest(f"`{path}.role` must be one of {', '.join(f'`{known}`' for known in _ROLES)}")
    if value.get("function_call") is not None:
        raise InvalidRequest(f"`{path}.function_call` is not supported: use `tool_calls`")
    assistant = role == "assistant"
    calls = _read_calls(value.get("tool_calls"), f"{path}.tool_calls")
    if calls and not assistant:
        raise InvalidRequest(f"`{path}.tool_calls` is for messages of the role `assistant`")
    content = value.get("content")
    if content is None and assistant:
        content = value.get("refusal")
    if content is None and not assistant:
        raise InvalidRequest(f"`{path}.content` is required")
    if content is None and value.get("tool_calls") is None:
        raise InvalidRequest(f"`{path}.content` is required where there are no `tool_calls`")
    return Message(
        role=_ROLES[role],
        texts=[] if content is None else _read_content(content, f"{path}.content"),
        name=_string(value, "name", path),
        reasoning=next((text for key in _REASONING if (text := _string(value, key, path))), None)
        if assistant
        else None,
        calls=calls,
        call_id=_string(value, "tool_call_id", path) if role == "tool" else None,
    )


def _read_content(content: Any, path: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise InvalidRequest(f"`{path}` must be a string or an array of parts")
    if not content:
        raise InvalidRequest(f"`{path}` must hold at least one part")
    return [_read_part(part, f"{path}.{place}") for place, part in enumerate(content)]


def _read_part(part: Any, path: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f"`{path}` must be an object")
    kind = part.get("type")
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if key is None:
        # Nothing is fetched to find that out.
        raise InvalidRequest(f"`{path}.type` must be `text`: this model takes text only")
    text = part.get(key)
    if not isinstance(text, str):
        raise InvalidRequest(f"`{path}.{key}` must be a string")
    return text


def _read_calls(calls: Any, path: str) -> list[PastCall]:
    if calls is None:
        return []
    if not isinstance(calls, list):
        raise InvalidRequest(f"`{path}` must be an array")
    return [_read_call(call, f"{path}.{place}") for place, call in enumerate(calls)]


def _read_call(call: Any, path: str) -> PastCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise InvalidRequest(f"`{path}.function` must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"`{path}.function.name` must be a string")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _parse_arguments(arguments, f"{path}.function.arguments")
    elif arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"`{path}.function.arguments` must be an object, in JSON")
    return PastCall(_string(call, "id", path) or "", name, arguments)


def _parse_arguments(text: str, path: str) -> Any:
    if not text.strip():
        return {}  # What several clients send for a function without parameters.
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"`{path}` must be JSON") from None


def _string(value: dict[str, Any], key: str, path: str) -> str | None:
    text = value.get(key)
    if text is not None and not isinstance(text, str):
        raise InvalidRequest(f"`{path}.{key}` must be a string")
    return text


def _joined(first: Message, second: Message) -> Message:
    """One system message of two; what both say is said once."""
    if first.text == second.text:
        return first
    return msgspec.structs.replace(first, texts=[f"{first.text}\n\n{second.text}"])
