"""Objects that list their keys have no others; schemas that closing could spoil stay as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.closed_objects import close_objects
from common.errors import InvalidRequest
from common.grammar import Grammar
from common.grammar_compiler import byte_tokenizer, compile_grammar

TEXT = {"type": "string"}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(close_objects(json.dumps(schema)))
    return result


def allows(schema: dict[str, Any], answer: str) -> bool:
    matcher = compile_grammar(Grammar("json", json.dumps(schema)), byte_tokenizer())
    return matcher.try_consume_tokens(list(answer.encode())) == len(answer) and matcher.is_accepting()


def test_an_object_is_closed_wherever_it_is() -> None:
    inner = {"type": "object", "properties": {"a": TEXT}}
    shut = inner | {"additionalProperties": False}
    assert closed(inner) == shut
    assert closed({"type": "array", "items": inner}) == {"type": "array", "items": shut}
    assert closed({"$defs": {"x": inner}, "$ref": "#/$defs/x"}) == {"$defs": {"x": shut}, "$ref": "#/$defs/x"}
    assert closed({"anyOf": [inner, {"type": "null"}]}) == {"anyOf": [shut, {"type": "null"}]}
    assert closed({"properties": {"properties": inner}}) == {
        "properties": {"properties": shut},
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": TEXT}, "additionalProperties": True},
        {"properties": {"a": TEXT}, "additionalProperties": TEXT},
        {"properties": {"a": TEXT}, "patternProperties": {"^b": TEXT}},
        {"properties": {"a": TEXT}, "required": ["a", "b"]},
        {"properties": {"a": TEXT}, "minProperties": 2},
        {"properties": {"a": TEXT}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"properties": {}},
        {"allOf": [{"properties": {"a": TEXT}}, {"properties": {"b": TEXT}}]},
        {"properties": {"a": TEXT}, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    ],
)
def test_what_closing_could_spoil_stays(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema


def test_the_grammar_allows_no_other_key() -> None:
    schema = {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}
    assert allows(schema, '{"a": "x"}')
    assert not allows(schema, '{"a": "x","b": 1}')
    assert allows(schema | {"additionalProperties": True}, '{"a": "x","b": 1}')


def test_a_schema_that_is_not_one_is_still_refused() -> None:
    with pytest.raises(InvalidRequest):
        compile_grammar(Grammar("json", '{"properties": {"a": 5}}'), byte_tokenizer())
