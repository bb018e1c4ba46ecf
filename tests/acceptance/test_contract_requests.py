"""What breaks a contract's request schema is refused with a 422 that names the field, or listed with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ops.local_service import LocalService
from tests.contract.contracts import Operation, Schema, components, operations
from tests.contract.coverage import fields
from tests.contract.deviations import BREACHES_TAKEN
from tests.contract.exchanges import LEAST
from tests.contract.recording import Exchange, Nodes

OPERATIONS = [operation for operation in operations() if operation.body is not None]
_MISSING = object()


@pytest.fixture(scope="module")
def nodes(scripted_service: LocalService) -> Iterator[Nodes]:
    with Nodes({"usual": scripted_service.url}) as nodes:
        yield nodes


@dataclass(frozen=True)
class Breach:
    """One value that its schema does not allow."""

    field: str
    """Its path in the body."""
    kind: str
    value: Any = _MISSING

    def of(self, body: dict[str, Any]) -> dict[str, Any]:
        *outer, last = self.field.split(".")
        inner = broken = {**body}
        for name in outer:
            inner[name] = {**inner.get(name, {})}
            inner = inner[name]
        if self.value is _MISSING:
            del inner[last]
        else:
            inner[last] = self.value
        return broken


def breaches_of(operation: Operation) -> Iterator[Breach]:
    assert operation.body is not None
    yield from breaches(components(operation.contract), operation.body)


def breaches(schemas: dict[str, Schema], schema: Schema, place: str = "") -> Iterator[Breach]:
    for name, field, required in fields(schemas, schema):
        path = place + name
        if required and not place:
            yield Breach(path, "missing")
        plain = _plain(schemas, field)
        if plain.get("type") in ("integer", "number", "string", "boolean", "array"):
            yield Breach(path, "type", {"surprise": True})
        elif plain.get("type") == "object":
            yield Breach(path, "type", 7)
        step = 1 if plain.get("type") == "integer" else 0.5
        for word, value in (
            ("minimum", plain.get("minimum", 0) - step),
            ("exclusiveMinimum", plain.get("exclusiveMinimum")),
            ("maximum", plain.get("maximum", 0) + step),
        ):
            if word in plain:
                yield Breach(path, f"{word} {plain[word]}", value)
        if "maxItems" in plain:
            yield Breach(path, "maxItems", ["x", "y"] * plain["maxItems"])
        if plain.get("type") == "object" and name == "parameters":
            yield from breaches(schemas, plain, f"{path}.")


def _plain(schemas: dict[str, Schema], schema: Schema) -> Schema:
    """Without references and without null."""
    while True:
        if "$ref" in schema:
            schema = schemas[schema["$ref"].rpartition("/")[2]]
        elif len(schema.get("allOf", ())) == 1:
            schema = schema["allOf"][0]
        elif "anyOf" in schema and (rest := [part for part in schema["anyOf"] if part != {"type": "null"}]):
            if len(rest) > 1:
                return {}
            (schema,) = rest
        else:
            return schema


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_breaches_are_refused(nodes: Nodes, operation: Operation) -> None:
    for breach in breaches_of(operation):
        status = 200 if (operation.path, breach.field, breach.kind) in BREACHES_TAKEN else 422
        exchange = Exchange("POST", operation.path, status, breach.of(LEAST[operation.path]))
        answer = nodes.exchanged(exchange)
        name = breach.field.rpartition(".")[2]
        assert status == 200 or name in answer.response.text, f"{breach}: {answer.response.text}"


def test_no_breach_is_listed_for_nothing() -> None:
    known = {
        (operation.path, breach.field, breach.kind) for operation in OPERATIONS for breach in breaches_of(operation)
    }
    assert set(BREACHES_TAKEN) <= known
