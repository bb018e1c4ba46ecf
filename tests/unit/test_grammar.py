"""Grammars as requests send them, and the limits that need no compiler."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.errors import InvalidRequest
from common.grammar import (
    MAX_DEPTH,
    MAX_MULTIPLES,
    MAX_REGEX_BYTES,
    MAX_SCHEMA_BYTES,
    MAX_VALUES,
    Grammar,
    read_grammar,
)

SCHEMA: dict[str, Any] = {"properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}


def nested(depth: int) -> dict[str, Any]:
    """A schema of `depth` containers within one another."""
    value: dict[str, Any] = {}
    for _ in range(depth - 2):
        value = {"not": value}
    return {"properties": value}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("json", SCHEMA),
        ("json_object", SCHEMA),
        ("json", json.dumps(SCHEMA, indent=2)),
        ("json_schema", {"name": "x", "strict": True, "schema": SCHEMA}),
        ("json_schema", {"schema": json.dumps(SCHEMA)}),
    ],
)
def test_all_spellings_of_a_schema_are_one_grammar(kind: str, value: Any) -> None:
    grammar = read_grammar(kind, value)
    assert grammar == Grammar("json", '{"properties":{"b":{"type":"integer"},"a":{"type":"string"}}}')


def test_a_regex_is_kept_as_it_is() -> None:
    assert read_grammar("regex", "a\\d+é") == Grammar("regex", "a\\d+é")


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("regex", {"a": 1}, "the value of a `regex` must be a string"),
        ("json", "{", "it is not JSON"),
        ("json", 5, "a schema must be an object"),
        ("json", [], "a schema must be an object"),
        ("json", "[]", "a schema must be an object"),
        ("json", True, "a schema must be an object"),
        ("json", {"abc": "def"}, "must have a `properties` field"),
        ("json", {"type": "array", "items": {"type": "integer"}}, "must have a `properties` field"),
        ("json", {"properties": []}, "must have a `properties` field"),
        ("json_schema", SCHEMA, "must be an object with a `schema`"),
        ("json_schema", "x", "must be an object with a `schema`"),
        ("regex", "a" * (MAX_REGEX_BYTES + 1), f"it has {MAX_REGEX_BYTES + 1} bytes, at most {MAX_REGEX_BYTES}"),
        ("regex", "é" * MAX_REGEX_BYTES, f"it has {2 * MAX_REGEX_BYTES} bytes"),
        ("json", SCHEMA | {"description": "x" * MAX_SCHEMA_BYTES}, "bytes, at most"),
        ("json", " " * MAX_SCHEMA_BYTES + "{}", f"it has more than {MAX_SCHEMA_BYTES} bytes"),
        ("json", SCHEMA | {"enum": list(range(MAX_VALUES))}, f"it has more than {MAX_VALUES} values"),
        ("json", nested(MAX_DEPTH + 1), f"it is nested more than {MAX_DEPTH} levels deep"),
        ("json", "[" * 60_000, f"it is nested more than {MAX_DEPTH} levels deep"),
        ("json", {"properties": {"a": {"multipleOf": MAX_MULTIPLES + 1}}}, "`multipleOf` values are larger"),
        ("json", {"properties": {"a": {"multipleOf": 1e-7 + 0.123456}}}, "`multipleOf` values are larger"),
        ("json", {"properties": {str(i): {"multipleOf": 9973} for i in range(5)}}, "`multipleOf` values are larger"),
    ],
)
def test_what_is_refused_before_anything_is_compiled(kind: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_grammar(kind, value)
    assert caught.value.message.startswith("Input validation error: `grammar` is not valid: ")
    assert message in caught.value.message


@pytest.mark.parametrize(
    "schema",
    [
        nested(MAX_DEPTH),
        SCHEMA | {"enum": list(range(MAX_VALUES - 20))},
        {"properties": {"a": {"multipleOf": 0.25}, "b": {"multipleOf": 10**15}, "c": {"multipleOf": True}}},
    ],
)
def test_the_edges_that_are_allowed(schema: dict[str, Any]) -> None:
    read_grammar("json", schema)


def test_a_job_from_elsewhere_is_held_to_the_same_limits() -> None:
    with pytest.raises(InvalidRequest, match="nested more than"):
        Grammar("json", json.dumps(nested(MAX_DEPTH + 1))).check()
    Grammar("json", "true").check()
