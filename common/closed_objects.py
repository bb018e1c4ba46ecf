"""Objects of a JSON Schema have no other keys than those it lists, unless it says otherwise.

The standard has it the other way round, and models then go on and on with keys nobody asked for. Outlines, and so TGI,
closes objects, and OpenAI's strict mode wants them closed. Closing only narrows what a schema allows, so that every answer
still validates; where it could leave nothing to allow, the schema stays as it is.
"""

from __future__ import annotations

import json
from typing import Any

_COMBINING = frozenset(("allOf", "if", "not", "dependentSchemas", "$dynamicRef", "$recursiveRef"))
"""With one of these anywhere an object's keys may come from several places."""
_BESIDE = frozenset(("additionalProperties", "patternProperties", "unevaluatedProperties", "anyOf", "oneOf", "$ref"))
"""Beside `properties` these say, or may say, what other keys there are."""
_IN_OBJECTS = ("properties", "$defs", "definitions", "patternProperties")
_IN_LISTS = ("anyOf", "oneOf", "prefixItems")
_ALONE = ("items", "additionalProperties", "unevaluatedProperties", "additionalItems", "contains")


def close_objects(schema: str) -> str:
    """A JSON Schema as JSON, with `additionalProperties: false` in the objects that list their keys."""
    if '"properties"' not in schema or any(f'"{keyword}"' in schema for keyword in _COMBINING):
        return schema
    return json.dumps(_closed(json.loads(schema)), ensure_ascii=False, separators=(",", ":"))


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for keyword in _IN_OBJECTS:
        if isinstance(inner := schema.get(keyword), dict):
            closed[keyword] = {name: _closed(value) for name, value in inner.items()}
    for keyword in _IN_LISTS:
        if isinstance(inner := schema.get(keyword), list):
            closed[keyword] = [_closed(value) for value in inner]
    for keyword in _ALONE:
        if keyword in schema:
            closed[keyword] = _closed(schema[keyword])
    if _can_be_closed(schema):
        closed["additionalProperties"] = False
    return closed


def _can_be_closed(schema: dict[str, Any]) -> bool:
    listed, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(listed, dict) or not listed or not _BESIDE.isdisjoint(schema):
        return False
    at_least = schema.get("minProperties", 0)
    fits = isinstance(required, list) and all(name in listed for name in required if isinstance(name, str))
    return fits and isinstance(at_least, int | float) and at_least <= len(listed)
