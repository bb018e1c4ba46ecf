"""Which parts of a contract's schemas the values seen so far have reached."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.contract.contracts import Schema, name_of, validator

Part = str
"""A property (`Token.id`, `GenerateResponse.details.tokens[].id`) or a value of an enumeration (`FinishReason=length`)."""


class Coverage:
    """Walks values beside their schemas."""

    def __init__(self, schemas: dict[str, Schema]) -> None:
        self._schemas = schemas
        self.seen: set[Part] = set()

    def visit(self, schema: Schema, value: Any, place: str = "") -> None:
        """Note every part of the schema that the value has; it must be valid."""
        if (name := name_of(schema)) is not None:
            self.visit(self._schemas[name], value, name)
            return
        for branch in schema.get("allOf", ()):
            self.visit(branch, value, place)
        for branch in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
            if validator(self._schemas, branch).is_valid(value):
                self.visit(branch, value, place)
        if "enum" in schema and value in schema["enum"]:
            self.seen.add(f"{place}={value}")
        if isinstance(value, dict):
            for key, field in schema.get("properties", {}).items():
                if value.get(key) is not None:
                    self.seen.add(f"{place}.{key}")
                    self.visit(field, value[key], f"{place}.{key}")
        if isinstance(value, list) and "items" in schema:
            for item in value:
                self.visit(schema["items"], item, f"{place}[]")


def parts(schemas: dict[str, Schema], schema: Schema) -> set[Part]:
    """Every part that values of a schema can have."""
    return _reached(schemas, schema)[0]


def names(schemas: dict[str, Schema], schema: Schema) -> set[str]:
    """The components that a schema is made of."""
    return _reached(schemas, schema)[1]


def _reached(schemas: dict[str, Schema], schema: Schema) -> tuple[set[Part], set[str]]:
    found: set[Part] = set()
    done: set[str] = set()

    def walk(schema: Schema, place: str) -> None:
        if (name := name_of(schema)) is not None:
            if name not in done:
                done.add(name)
                walk(schemas[name], name)
            return
        found.update(f"{place}={value}" for value in schema.get("enum", ()))
        for branch in _branches(schema):
            walk(branch, place)
        for key, field in schema.get("properties", {}).items():
            found.add(f"{place}.{key}")
            walk(field, f"{place}.{key}")
        if "items" in schema:
            walk(schema["items"], f"{place}[]")

    walk(schema, "")
    return found, done


def fields(schemas: dict[str, Schema], schema: Schema) -> Iterator[tuple[str, Schema, bool]]:
    """Name, schema and whether it is required, of the properties of an object's schema."""
    if (name := name_of(schema)) is not None:
        yield from fields(schemas, schemas[name])
    for branch in _branches(schema):
        yield from fields(schemas, branch)
    for key, field in schema.get("properties", {}).items():
        yield key, field, key in schema.get("required", ())


def shown(value: Any) -> str:
    """A value for a message, not too long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 500 else text[:500] + "…"


def _branches(schema: Schema) -> list[Schema]:
    return [branch for word in ("allOf", "anyOf", "oneOf") for branch in schema.get(word, ())]
