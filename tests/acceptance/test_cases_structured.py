"""Cases from other servers' bug reports, replayed: structured output of chats."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from ops.local_service import LocalService
from tests.acceptance.chat import choice, post, refused, streamed, user
from tests.acceptance.native import script

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "maximum": 99}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
PUSHING = [user(script("     \n\n\n    and so on, and so on", repeat=40))]
"""A model that says anything but JSON."""


@pytest.fixture(scope="module")
def url(scripted_service: LocalService) -> str:
    return scripted_service.url


def content(url: str, response_format: Any, **fields: Any) -> str:
    found = choice(url, PUSHING, response_format=response_format, **fields)
    assert found["finish_reason"] == "stop"
    return str(found["message"]["content"])


def of(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}


def test_f01_any_object(url: str) -> None:
    said = choice(url, [user(script('{"a": [1, {"b": null}]}'))], response_format={"type": "json_object"})
    assert json.loads(said["message"]["content"]) == {"a": [1, {"b": None}]}
    assert choice(url, PUSHING, response_format={"type": "json_object"})["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    "response_format",
    [
        of(SCHEMA),
        {"type": "json_schema", "value": {"name": "s", "schema": SCHEMA}},
        {"type": "json", "value": SCHEMA},
        {"type": "json_object", "value": SCHEMA},
        {"type": "json_object", "schema": SCHEMA},
    ],
    ids=["openai", "tgi", "json", "json_object", "schema"],
)
def test_f02_every_shape(url: str, response_format: dict[str, Any]) -> None:
    text = content(url, response_format, seed=1)
    jsonschema.validate(json.loads(text), SCHEMA)
    assert not re.search(r"\s\s", re.sub(r'"[^"]*"', '""', text))  # F10
    chunks = streamed(url, PUSHING, response_format=response_format, seed=1)
    assert "".join(chunk["delta"].get("content") or "" for chunk in chunks) == text


def test_f02_regex_and_text(url: str) -> None:
    assert re.fullmatch(r"\d{3}-[a-z]{4}", content(url, {"type": "regex", "value": r"\d{3}-[a-z]{4}"}))
    assert choice(url, [user(script("ok"))], response_format={"type": "text"})["message"]["content"] == "ok"


@pytest.mark.parametrize(
    ("schema", "checked"),
    [
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}, list),
        ({"enum": ["red", "green"]}, str),
        ({"type": "integer", "minimum": 5, "maximum": 9}, int),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, (bool, type(None))),
    ],
    ids=["array", "enum", "integer", "anyOf"],
)
def test_f03_f08_any_kind_of_value_at_the_root(url: str, schema: dict[str, Any], checked: Any) -> None:
    value = json.loads(content(url, of(schema)))
    assert isinstance(value, checked)
    jsonschema.validate(value, schema)


@pytest.mark.parametrize(
    ("response_format", "param", "said"),
    [
        ({"type": "regex", "value": "[unclosed"}, "response_format", "unclosed character class"),
        (of({"type": "object", "properties": {"x": {"type": "float"}}}), "response_format", "no JSON Schema"),
        (of({"properties": {"x": {"uniqueItems": True}}}), "response_format", "uniqueItems"),
        (of({"properties": {f"field{place}": {} for place in range(20_000)}}), "response_format", "at most"),
        (of("{"), "response_format", "not JSON"),
        ({"type": "xml"}, "response_format.type", "must be one of"),
        ({"type": "json_schema"}, "response_format.json_schema", "`schema`"),
        ({"type": "regex"}, "response_format.value", "must be a string"),
        ("json", "response_format", ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_f04_f05_what_cannot_be_used_is_refused(url: str, response_format: Any, param: str, said: str) -> None:
    refused(post(url, [user("x")], response_format=response_format), param, said)


def test_f11_cut_json_is_not_a_success(url: str) -> None:
    found = choice(url, PUSHING, response_format=of(SCHEMA), max_tokens=4)
    assert found["finish_reason"] == "length"


def test_f14_stop_strings_hold_within_a_format(url: str) -> None:
    """The end of the grammar ends the answer; a stop string may end it before that, and is left out."""
    said = [user(script('{"name": "a", "count": 1} and more'))]
    found = choice(url, said, response_format=of(SCHEMA))
    assert (found["message"]["content"], found["finish_reason"]) == ('{"name": "a", "count": 1}', "stop")
    found = choice(url, said, response_format=of(SCHEMA), stop=["}"])
    assert (found["message"]["content"], found["finish_reason"]) == ('{"name": "a", "count": 1', "stop")


def test_the_real_model_keeps_to_the_schema(real_service: LocalService) -> None:
    asked = {"response_format": of(SCHEMA), "max_tokens": 60, "temperature": 0}
    found = choice(real_service.url, [user("Three apples. Name and count?")], **asked)
    jsonschema.validate(json.loads(found["message"]["content"]), SCHEMA)
    assert found["finish_reason"] == "stop"
