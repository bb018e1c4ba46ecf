"""All spellings of `response_format`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.errors import InvalidRequest
from common.grammar import MAX_SCHEMA_BYTES, Grammar
from common.protocols.response_format import read_response_format

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
JSON = Grammar("json", '{"type":"object","properties":{"a":{"type":"integer"}}}')


def grammar(value: Any) -> Grammar | None:
    make = read_response_format(value)
    return None if make is None else make()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, Grammar("json", '{"type":"object"}')),
        ({"type": "json_object", "value": None}, Grammar("json", '{"type":"object"}')),
        ({"type": "json_object", "value": SCHEMA}, JSON),
        ({"type": "json_object", "schema": SCHEMA}, JSON),
        ({"type": "json", "value": SCHEMA}, JSON),
        ({"type": "json", "value": json.dumps(SCHEMA)}, JSON),
        ({"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}, JSON),
        ({"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": None}}, JSON),
        ({"type": "json_schema", "value": {"name": "s", "schema": SCHEMA}}, JSON),
        ({"type": "json_schema", "name": "s", "schema": SCHEMA}, JSON),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}, Grammar("json", '{"type":"array"}')),
        ({"type": "json_object", "value": {"enum": [1, "a"]}}, Grammar("json", '{"enum":[1,"a"]}')),
        ({"type": "regex", "value": "a+"}, Grammar("regex", "a+")),
    ],
)
def test_spellings(value: Any, expected: Grammar | None) -> None:
    assert grammar(value) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("json_object", "`response_format` must be an object"),
        ({}, "`response_format.type` must be one of"),
        ({"type": "xml"}, "`response_format.type` must be one of"),
        ({"type": ["text"]}, "`response_format.type` must be one of"),
        ({"type": "regex"}, "`response_format.value` must be a string"),
        ({"type": "regex", "value": {}}, "`response_format.value` must be a string"),
        ({"type": "json"}, "`response_format.value` must hold a schema"),
        ({"type": "json_schema"}, "`response_format.json_schema` must be an object with a `schema`"),
        ({"type": "json_schema", "json_schema": {"name": "s"}}, "`response_format.json_schema` must be an object"),
        ({"type": "json_schema", "value": SCHEMA}, "`response_format.value` must be an object with a `schema`"),
        (
            {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": "yes"}},
            "`response_format.json_schema.strict` must be a boolean",
        ),
    ],
)
def test_what_is_refused_at_once(value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_response_format(value)
    assert caught.value.message.startswith(f"Input validation error: {message}")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"type": "json", "value": [1]}, "a schema must be an object"),
        ({"type": "json", "value": "{"}, "it is not JSON"),
        ({"type": "json", "value": {"description": "x" * MAX_SCHEMA_BYTES}}, "bytes, at most"),
        ({"type": "regex", "value": "a" * 10_000}, "bytes, at most"),
    ],
)
def test_what_is_refused_with_the_grammar(value: Any, message: str) -> None:
    make = read_response_format(value)
    assert make is not None
    with pytest.raises(InvalidRequest, match=message):
        make()
