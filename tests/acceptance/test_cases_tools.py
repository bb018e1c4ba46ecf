"""Cases from other servers' bug reports, replayed: tools."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import pytest

from ops.local_service import LocalService
from tests.acceptance.chat import choice, post, refused, streamed, user
from tests.acceptance.native import script

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "Time", "parameters": {"type": "object"}}}
ROME = '{"city": "Rome", "unit": "C"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ROME}}}\n</tool_call>'
"""What a model writes that calls."""
TIME = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def url(scripted_service: LocalService) -> str:
    return scripted_service.url


def asked(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [user(script(text))], "tools": [WEATHER, CLOCK], **fields}


def calls_of(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls that the deltas of a stream put together, as clients do it."""
    calls: list[dict[str, Any]] = []
    for each in choices:
        for delta in each["delta"].get("tool_calls") or []:
            if delta["index"] == len(calls):
                calls.append({"id": delta["id"], "type": delta["type"], "function": dict(delta["function"])})
            else:
                assert delta.keys() == {"index", "function"}
                assert delta["function"].keys() == {"arguments"}
                calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    return calls


def test_e01_the_model_may_decline(url: str) -> None:
    found = choice(url, **asked("Hi there!"))
    assert (found["message"]["content"], found["finish_reason"]) == ("Hi there!", "stop")
    assert "tool_calls" not in found["message"]
    chunks = streamed(url, **asked("Hi there!"))
    assert "".join(chunk["delta"].get("content") or "" for chunk in chunks) == "Hi there!"
    assert chunks[-1]["finish_reason"] == "stop"


def test_e01_or_speak_and_call(url: str) -> None:
    found = choice(url, **asked(f"Let me see.\n{CALL}"))
    assert (found["message"]["content"], found["finish_reason"]) == ("Let me see.", "tool_calls")
    assert found["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": ROME}


@pytest.mark.parametrize("tool_choice", ["auto", "required", NAMED])
def test_e02_e03_e04_e05_a_call_whole_and_streamed(url: str, tool_choice: Any) -> None:
    found = choice(url, **asked(CALL, tool_choice=tool_choice))
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["content"] is None
    (call,) = found["message"]["tool_calls"]
    assert (call["type"], call["function"]) == ("function", {"name": "get_weather", "arguments": ROME})
    assert call["id"].startswith("call_")

    chunks = streamed(url, **asked(CALL, tool_choice=tool_choice))
    deltas = [delta for chunk in chunks for delta in chunk["delta"].get("tool_calls") or []]
    assert deltas[0].keys() == {"index", "id", "type", "function"}
    assert deltas[0]["function"] == {"name": "get_weather", "arguments": ""}
    (again,) = calls_of(chunks)
    assert again["function"] == call["function"]
    assert again["id"].startswith("call_")
    assert again["id"] != call["id"]
    assert [chunk["finish_reason"] for chunk in chunks] == [*[None] * (len(chunks) - 1), "tool_calls"]
    assert not any(chunk["delta"].get("content") for chunk in chunks)


def test_e04_a_call_that_is_cut_says_so(url: str) -> None:
    fields = asked(CALL, max_tokens=20)
    found = choice(url, **fields)
    assert found["finish_reason"] == "length"
    arguments = found["message"]["tool_calls"][0]["function"]["arguments"]
    assert ROME.startswith(arguments)
    chunks = streamed(url, **fields)
    assert calls_of(chunks)[0]["function"]["arguments"] == arguments
    assert chunks[-1]["finish_reason"] == "length"


def test_e07_several_calls(url: str) -> None:
    both = f"{CALL}\n{TIME}"
    for fields in (asked(both), asked(both, tool_choice="required"), asked(both, parallel_tool_calls=True)):
        calls = choice(url, **fields)["message"]["tool_calls"]
        assert [call["function"]["name"] for call in calls] == ["get_weather", "clock"]
        assert calls[0]["id"] != calls[1]["id"]
        again = calls_of(streamed(url, **fields))
        assert [call["function"] for call in again] == [call["function"] for call in calls]
        assert again[0]["id"] != again[1]["id"]
    (call,) = choice(url, **asked(both, parallel_tool_calls=False))["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"


@pytest.mark.parametrize(
    ("tools", "place"),
    [
        (
            [
                CLOCK,
                {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "float"}}}}},
            ],
            "tools.1.function.parameters",
        ),
        ([{"type": "function", "function": {"name": "has spaces"}}], "tools.0.function.name"),
        ([CLOCK, CLOCK], "tools.1.function.name"),
        ([{"type": "function", "function": {"name": f"f{place}"}} for place in range(300)], "tools"),
    ],
    ids=["schema", "name", "twice", "300"],
)
def test_e09_what_tools_cannot_be_is_refused_by_place(url: str, tools: list[dict[str, Any]], place: str) -> None:
    for choosing in ("auto", "required"):
        refused(post(url, [user("x")], tools=tools, tool_choice=choosing), place)


def test_e10_choices(url: str) -> None:
    assert choice(url, **asked("words", tool_choice="none"))["message"]["content"] == "words"
    # A script that will not call is made to, by the grammar.
    for forced in ("required", NAMED, "get_weather", {"function": {"name": "get_weather"}}):
        found = choice(url, **asked("words", tool_choice=forced))
        assert found["finish_reason"] in ("tool_calls", "length")
        assert found["message"]["tool_calls"][0]["function"]["name"] in ("get_weather", "clock")
    refused(post(url, **asked("x", tool_choice="unknown")), "tool_choice")
    refused(post(url, **asked("x", tool_choice={"function": {"name": "unknown"}})), "tool_choice")
    for choosing in ("required", NAMED):
        refused(post(url, [user("x")], tool_choice=choosing), "tool_choice")


def test_e10_none_hides_the_tools(url: str) -> None:
    def rendered(**fields: Any) -> str:
        response = httpx.post(f"{url}/chat_tokenize", json={"messages": [user("x")], **fields})
        return str(response.json()["templated_text"])

    assert "get_weather" in rendered(tools=[WEATHER])
    assert rendered(tools=[WEATHER], tool_choice="none") == rendered()


def test_e11_not_together_with_a_format(url: str) -> None:
    refused(post(url, **asked("x", response_format={"type": "json_object"})), said="`response_format` and `tools`")


@pytest.mark.parametrize("text", ["<tool_c", "<tool_call", "< tool_call>{"])
def test_e13_half_open_markers_are_content(url: str, text: str) -> None:
    found = choice(url, [user(script(text, repeat=50))], tools=[WEATHER], max_tokens=1000)
    assert found["message"]["content"] == text * 50


def test_e14_results_are_in_the_prompt(url: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ROME}}
    history = [
        user("Weather?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "31 degrees"},
    ]
    response = httpx.post(f"{url}/chat_tokenize", json={"messages": history, "tools": [WEATHER]})
    prompt = response.json()["templated_text"]
    assert "31 degrees" in prompt
    assert prompt.index('"name": "get_weather", "arguments"') < prompt.index("31 degrees")
    assert prompt.endswith("<|im_start|>assistant\n")


def test_the_real_model_calls_by_the_schema(real_service: LocalService) -> None:
    asked = {"tools": [WEATHER, CLOCK], "max_tokens": 60, "temperature": 0}
    found = choice(real_service.url, [user("What is the weather in Paris, in C?")], tool_choice=NAMED, **asked)
    assert found["finish_reason"] == "tool_calls"
    (call,) = found["message"]["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)
    chunks = streamed(real_service.url, [user("What is the weather in Paris, in C?")], tool_choice=NAMED, **asked)
    assert calls_of(chunks)[0]["function"] == call["function"]
