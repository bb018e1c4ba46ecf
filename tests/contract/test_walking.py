"""The tools of the contract suite find what they are for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.contracts import NAMES, Schema, any_of, components, operations, ref, validator
from tests.contract.coverage import Coverage, fields, parts
from tests.contract.deviations import BREACHES_TAKEN, COMPONENTS, NEVER_ANSWERED, NEVER_SEEN, NEVER_TAKEN, UNUSED
from tests.contract.recording import events

SCHEMAS: dict[str, Schema] = {
    "Animal": {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "kind": ref("Kind"),
            "young": {"type": "array", "items": ref("Animal")},
        },
    },
    "Kind": {"type": "string", "enum": ["cat", "dog"]},
}


def test_every_operation_of_the_contracts_is_known() -> None:
    found = [operation.name for operation in operations()]
    assert len(found) == 22
    assert {name.split()[0] for name in found} == set(NAMES)
    assert "tgi-1.3.4 GET /metrics" in found


def test_parts_are_what_values_can_have() -> None:
    assert parts(SCHEMAS, ref("Animal")) == {"Animal.name", "Animal.kind", "Animal.young", "Kind=cat", "Kind=dog"}
    inline = {"type": "object", "properties": {"pets": {"type": "array", "items": {"properties": {"age": {}}}}}}
    assert parts({}, inline) == {".pets", ".pets[].age"}


def test_coverage_sees_what_values_have() -> None:
    coverage = Coverage(SCHEMAS)
    coverage.visit(ref("Animal"), {"name": "Tom", "kind": "cat", "young": []})
    assert coverage.seen == {"Animal.name", "Animal.kind", "Animal.young", "Kind=cat"}
    coverage.visit(ref("Animal"), {"name": "Rex", "kind": None, "young": [{"name": "Bo", "kind": "dog"}]})
    assert coverage.seen == parts(SCHEMAS, ref("Animal"))


def test_only_alternatives_that_hold_are_seen() -> None:
    either: Schema = {
        "oneOf": [
            {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}},
            {"type": "object", "required": ["b"], "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}},
        ]
    }
    coverage = Coverage({})
    coverage.visit(either, {"b": "x"}, "X")
    assert coverage.seen == {"X.b"}
    assert "anyOf" in any_of(either)


def test_fields_tell_what_is_required() -> None:
    told = {name: required for name, _, required in fields(SCHEMAS, {"allOf": [ref("Animal")]})}
    assert told == {"name": True, "kind": False, "young": False}


def test_nullable_fields_may_be_null_and_others_may_not() -> None:
    token = validator(components("tgi-2.2.1"), ref("Token"))
    value: dict[str, Any] = {"id": 1, "text": "a", "logprob": None, "special": False}
    assert token.is_valid(value)
    assert not token.is_valid({**value, "text": None})


@pytest.mark.parametrize(
    "text",
    [
        "id: 1\ndata: {}",
        "data: {}\n\n",
        "id: 1\ndata: {}\n\nid: 2\ndata:{}\n\n",
        "id: 1\nevent: x\ndata: {}\n\n",
        'id: 1\ndata: {\ndata: "a"}\n\n',
        "id: 1\ndata: {}\n\nid: 3\ndata: {}\n\n",
    ],
)
def test_frames_that_clients_stumble_over_are_found(text: str) -> None:
    with pytest.raises(AssertionError):
        events(text)


def test_streams_are_taken_apart() -> None:
    assert events(':\nid: 1\ndata: {"a": 1}\n\nid: 2\ndata: [DONE]\n\n') == ([{"a": 1}], True)
    assert events(":\n:\nid: 1\ndata: {}\n\n") == ([{}], False)


def test_every_deviation_has_a_reason_and_a_place() -> None:
    known = {operation.name for operation in operations()}
    assert {name for name, _ in NEVER_ANSWERED} <= known
    assert {contract for contract, _ in COMPONENTS} <= set(NAMES)
    lists = [*NEVER_SEEN.values(), *NEVER_TAKEN.values(), *UNUSED.values()]
    reasons = [
        *(reason for listed in lists for reason in listed.values()),
        *NEVER_ANSWERED.values(),
        *BREACHES_TAKEN.values(),
        *(instead.reason for instead in COMPONENTS.values()),
    ]
    assert all(len(reason) > 10 for reason in reasons)
