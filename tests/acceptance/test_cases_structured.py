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
    assert re.fullmatch(r"\d{3}-[a-z]{4}", content(url, {"type": "regex", "value": r"\d{3}-[a-z]{4}"}), re.ASCII)
    assert choice(url, [user(script("ok"))], response_format={"type": "text"})["message"]["content"] == "ok"


@pytest.mark.parametrize(
    ("schema", "checked"),
    [
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}, list),
        ({"enum": ["red", "green"]}, str),
        ({"type": "integer", "minimum": 5, "maximum": 9}, int),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, (bool, type(None))),
        ({"const": {"k": [1]}}, dict),
        (
            {
                "$ref": "#/$defs/x",
                "$defs": {"x": {"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 2}},
            },
            list,
        ),
        ({"type": "string", "pattern": "^[a-c]{2,4}$"}, str),
        ({"type": "string", "format": "date"}, str),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False}, dict),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, (int, float)),
    ],
    ids=["array", "enum", "integer", "anyOf", "const", "ref", "pattern", "format", "optional", "number"],
)
def test_f03_f08_any_kind_of_value_at_the_root(url: str, schema: dict[str, Any], checked: Any) -> None:
    # Of all dates that can be drawn a few are none: grammars do not count leap years.
    value = json.loads(content(url, of(schema), seed=1))
    assert isinstance(value, checked)
    jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())


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


def deep(levels: int) -> dict[str, Any]:
    """A choice at each level."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"oneOf": [{"type": "object", "properties": {"a": schema}}, {"type": "integer"}]}
    return schema


HOSTILE: dict[str, Any] = {
    "nested repetition": {"type": "regex", "value": "(a+)+b"},
    "many repetitions": {"type": "regex", "value": "a{1,99999}"},
    "alternatives": {"type": "regex", "value": "(a|aa)*(a|aa)*(a|aa)*c"},
    "twenty levels": of(deep(20)),
    "in a circle": of(
        {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/b"}}}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "nothing but a circle": of(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "300 KB": of({"enum": [f"{place:06}" * 10 for place in range(5000)]}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_f05_hostile_formats_are_used_or_refused(url: str, name: str) -> None:
    """That others go on meanwhile is in `tests/integration`."""
    response = post(url, PUSHING, response_format=HOSTILE[name], max_tokens=5)
    assert response.status_code == 200 or refused(response, "response_format")
    assert choice(url, [user(script("next"))])["message"]["content"] == "next"


def test_f07_a_large_nested_schema(url: str) -> None:
    """60 fields, four levels, definitions that are used again and again."""
    leaf = {"type": "object", "properties": {f"x{i}": {"enum": [0, 1]} for i in range(4)}, "required": ["x0"]}
    middle = {"type": "object", "properties": {f"m{i}": {"$ref": "#/$defs/leaf"} for i in range(4)}, "required": ["m3"]}
    fields = {f"field{i}": {"$ref": f"#/$defs/{'middle' if i % 2 else 'leaf'}"} for i in range(60)}
    schema = {
        "type": "object",
        "properties": fields,
        "required": [*fields],
        "additionalProperties": False,
        "$defs": {"leaf": leaf | {"additionalProperties": False}, "middle": middle | {"additionalProperties": False}},
    }
    text = content(url, of(schema), max_tokens=3000, seed=1)
    jsonschema.validate(json.loads(text), schema)


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


def test_f10_the_real_model_keeps_to_the_schema(real_service: LocalService) -> None:
    asked = {"response_format": of(SCHEMA), "max_tokens": 60, "temperature": 0}
    found = choice(real_service.url, [user("Three apples. Name and count?")], **asked)
    text = found["message"]["content"]
    jsonschema.validate(json.loads(text), SCHEMA)
    assert found["finish_reason"] == "stop"
    assert not re.search(r"\s\s", re.sub(r'"[^"]*"', '""', text))
