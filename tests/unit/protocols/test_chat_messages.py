"""Messages of chat requests, normalised or refused."""

from __future__ import annotations

from typing import Any

import pytest

from common.chat_message import Message, PastCall
from common.errors import InvalidRequest
from common.protocols.chat_messages import read_messages


def call(arguments: Any, **others: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}], **others}


def test_content_is_a_string_or_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    one, two = read_messages([{"role": "user", "content": "ab", "name": "Ann"}, {"role": "user", "content": parts}])
    assert one == Message(role="user", texts=["ab"], name="Ann")
    assert two == Message(role="user", texts=["a", "b"])
    assert one.text == two.text


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (["developer", "user"], [("system", "0"), ("user", "1")]),
        (["system", "developer", "user"], [("system", "0\n\n1"), ("user", "2")]),
        (["developer", "system", "developer"], [("system", "0\n\n1\n\n2")]),
        (["system", "system"], [("system", "0"), ("system", "1")]),
        (["system", "user", "developer"], [("system", "0"), ("user", "1"), ("system", "2")]),
    ],
)
def test_a_developer_is_the_system(roles: list[str], expected: list[tuple[str, str]]) -> None:
    messages = read_messages([{"role": role, "content": str(place)} for place, role in enumerate(roles)])
    assert [(message.role, message.text) for message in messages] == expected


def test_what_system_and_developer_both_say_is_said_once() -> None:
    same = [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be brief."}]
    assert read_messages(same) == [Message(role="system", texts=["Be brief."])]


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("{}", {}),
        ("", {}),
        (None, {}),
    ],
)
def test_arguments_become_an_object(given: Any, arguments: dict[str, Any]) -> None:
    (message,) = read_messages([call(given)])
    assert message.calls == [PastCall("call_1", "f", arguments)]
    assert message.text == ""


def test_an_answer_to_a_call() -> None:
    answer = {"role": "tool", "content": "3", "tool_call_id": "call_1"}
    _, message = read_messages([call("{}", content=None), answer])
    assert message == Message(role="tool", texts=["3"], name="f", call_id="call_1")
    assert read_messages([answer])[0].name is None
    assert read_messages([{**answer, "name": "g"}])[0].name == "g"


def test_what_other_clients_send_back() -> None:
    dumped: dict[str, Any] = {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "tool_calls": None,
        "annotations": [],
        "audio": None,
    }
    assert read_messages([dumped]) == [Message(role="assistant", texts=["a"])]
    assert read_messages([{"role": "assistant", "content": None, "refusal": "no"}])[0].text == "no"
    assert read_messages([{"role": "assistant", "content": "a", "reasoning": "hm"}])[0].reasoning == "hm"
    assert read_messages([{"role": "assistant", "content": "", "tool_calls": []}])[0].calls == []


IMAGE = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("x", "messages.1"),
        ({"content": "x"}, "messages.1.role"),
        ({"role": "SYSTEM", "content": "x"}, "messages.1.role"),
        ({"role": "bot", "content": "x"}, "messages.1.role"),
        ({"role": "function", "name": "f", "content": "x"}, "messages.1.role"),
        ({"role": ["user"], "content": "x"}, "messages.1.role"),
        ({"role": "user"}, "messages.1.content"),
        ({"role": "user", "content": None}, "messages.1.content"),
        ({"role": "tool", "tool_call_id": "x"}, "messages.1.content"),
        ({"role": "assistant"}, "messages.1.content"),
        ({"role": "user", "content": 5}, "messages.1.content"),
        ({"role": "user", "content": []}, "messages.1.content"),
        ({"role": "user", "content": ["a"]}, "messages.1.content.0"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}, "messages.1.content.1.type"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "messages.1.content.0.type"),
        ({"role": "user", "content": [{"text": "a"}]}, "messages.1.content.0.type"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "messages.1.content.0.text"),
        ({"role": "user", "content": "a", "name": 5}, "messages.1.name"),
        ({"role": "user", "content": "a", "tool_calls": call("{}")["tool_calls"]}, "messages.1.tool_calls"),
        ({"role": "assistant", "tool_calls": {}}, "messages.1.tool_calls"),
        ({"role": "assistant", "tool_calls": ["f"]}, "messages.1.tool_calls.0.function"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages.1.tool_calls.0.function.name"),
        (call("not JSON"), "messages.1.tool_calls.0.function.arguments"),
        (call("[" * 100_000), "messages.1.tool_calls.0.function.arguments"),
        (call("[1]"), "messages.1.tool_calls.0.function.arguments"),
        (call(5), "messages.1.tool_calls.0.function.arguments"),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, "messages.1.function_call"),
    ],
)
def test_what_is_refused_names_its_place(message: Any, place: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_messages([{"role": "user", "content": "a"}, message])
    assert caught.value.message.startswith(f"Input validation error: `{place}` ")
    assert "169.254" not in caught.value.message


def test_there_must_be_a_message() -> None:
    with pytest.raises(InvalidRequest, match="`messages` must hold at least one message"):
        read_messages([])
