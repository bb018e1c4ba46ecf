"""Cases from other servers' bug reports, replayed: structured output on the native routes."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from ops.local_service import LocalService
from tests.acceptance.native import GENERATING, events, post, refused, script, text_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "maximum": 99, "minimum": 0},
    },
    "required": ["name", "count"],
    "additionalProperties": False,
}
PUSHING = script("     \n\n\n    and so on, and so on", repeat=40)
"""A model that says anything but JSON."""


@pytest.fixture(scope="module")
def url(scripted_service: LocalService) -> str:
    return scripted_service.url


def details(url: str, **parameters: Any) -> dict[str, Any]:
    found: dict[str, Any] = post(f"{url}/generate", PUSHING, details=True, **parameters).json()
    return found


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "json", "value": SCHEMA},
        {"type": "json_object", "value": SCHEMA},
        {"type": "json", "value": json.dumps(SCHEMA)},
        {"type": "json_schema", "value": {"name": "s", "strict": True, "schema": SCHEMA}},
    ],
    ids=["json", "json_object", "string", "json_schema"],
)
def test_f02_every_native_shape(url: str, path: str, grammar: dict[str, Any]) -> None:
    """The answer is the object, and no more blanks than one between its parts (F10)."""
    text = text_of(post(url + path, PUSHING, grammar=grammar, max_new_tokens=200, details=False))
    jsonschema.validate(json.loads(text), SCHEMA)
    assert not re.search(r"\s\s", re.sub(r'"[^"]*"', '""', text))


def test_f02_regex(url: str) -> None:
    text = text_of(post(f"{url}/generate", PUSHING, grammar={"type": "regex", "value": r"\d{3}-[a-z]{4}"}))
    assert re.fullmatch(r"\d{3}-[a-z]{4}", text, re.ASCII)


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(
    ("grammar", "named"),
    [
        ({"type": "json", "value": {"abc": "def"}}, "`properties` field"),
        ({"type": "json", "value": {"type": "array", "items": {"type": "integer"}}}, "`properties` field"),
        ({"type": "json", "value": "{"}, "not JSON"),
        ({"type": "json", "value": 5}, "a schema must be an object"),
        ({"type": "json", "value": {"properties": {"a": {"type": "zorg"}}}}, "no JSON Schema"),
        ({"type": "json", "value": {"properties": {"a": {"not": {"type": "string"}}}}}, "Unimplemented keys"),
        ({"type": "regex", "value": "[unclosed"}, "unclosed character class"),
        ({"type": "regex", "value": 5}, "must be a string"),
        ({"type": "json", "value": {"properties": {f"field{i}": {} for i in range(20_000)}}}, "bytes, at most"),
        ({"type": "yaml", "value": ""}, "`parameters.grammar.type`"),
        ({"type": "json"}, "`parameters.grammar.value`"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_f03_f04_f05_what_cannot_be_used_is_refused(url: str, path: str, grammar: dict[str, Any], named: str) -> None:
    refused(post(url + path, "x", grammar=grammar), named)


def test_f11_a_cut_answer_says_so(url: str) -> None:
    found = details(url, grammar={"type": "json", "value": SCHEMA}, max_new_tokens=4)
    assert found["details"]["finish_reason"] == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(found["generated_text"])


def test_f14_the_end_of_the_object_is_the_end_of_the_answer(url: str) -> None:
    grammar = {"type": "json", "value": SCHEMA}
    found = details(url, grammar=grammar, max_new_tokens=200)
    assert found["details"]["finish_reason"] == "eos_token"
    json.loads(found["generated_text"])
    found = details(url, grammar=grammar, max_new_tokens=200, stop=['"count"'])
    assert found["details"]["finish_reason"] == "stop_sequence"
    assert found["generated_text"].endswith('"count"')


def test_f14_streams_end_alike(url: str) -> None:
    response = post(f"{url}/generate_stream", PUSHING, grammar={"type": "json", "value": SCHEMA}, max_new_tokens=200)
    last = events(response)[-1]
    assert last["token"]["special"]
    jsonschema.validate(json.loads(last["generated_text"]), SCHEMA)
