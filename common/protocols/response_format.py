"""What shape a chat answer is to have: OpenAI's `response_format`, and TGI's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common.errors import InvalidRequest
from common.grammar import Grammar, json_grammar, regex_grammar

_KINDS = ("text", "json_object", "json_schema", "json", "regex")
_OBJECT = {"type": "object"}


def read_response_format(value: Any) -> Callable[[], Grammar] | None:
    """Read `response_format` (a plain JSON value).

    - `text`; `json_object`, any object unless there is a schema in `schema` or in TGI's `value`;
    - `json_schema`, with the schema in `json_schema.schema` (OpenAI), `value.schema` (TGI) or `schema`. It is always held
      to the letter, whatever `strict` says;
    - TGI's `json` with the schema in `value`, and `regex` with the expression in `value`.

    Returns:
        Makes the grammar, for `Ask.grammar`; it may raise `InvalidRequest`. None: any text will do.

    Raises:
        InvalidRequest: names `response_format`. Errors of the grammar name `grammar`: set `Ask.names["grammar"]`.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidRequest("`response_format` must be an object")
    kind = value.get("type")
    if kind not in _KINDS:
        raise InvalidRequest(f"`response_format.type` must be one of {', '.join(f'`{known}`' for known in _KINDS)}")
    if kind == "text":
        return None
    if kind == "regex":
        regex = value.get("value")
        if not isinstance(regex, str):
            raise InvalidRequest("`response_format.value` must be a string")
        return lambda: regex_grammar(regex)
    schema = _named_schema(value) if kind == "json_schema" else _plain_schema(value, required=kind == "json")
    return lambda: json_grammar(schema)


def _plain_schema(value: dict[str, Any], *, required: bool) -> Any:
    schema = next((value[key] for key in ("value", "schema") if value.get(key) is not None), None)
    if schema is None and required:
        raise InvalidRequest("`response_format.value` must hold a schema")
    return _OBJECT if schema is None else schema


def _named_schema(value: dict[str, Any]) -> Any:
    for key in ("json_schema", "value"):
        outer = value.get(key)
        if outer is None:
            continue
        if not isinstance(outer, dict) or outer.get("schema") is None:
            raise InvalidRequest(f"`response_format.{key}` must be an object with a `schema`")
        for field, kind, name in (("name", str, "string"), ("description", str, "string"), ("strict", bool, "boolean")):
            if outer.get(field) is not None and not isinstance(outer[field], kind):
                raise InvalidRequest(f"`response_format.{key}.{field}` must be a {name}")
        return outer["schema"]
    if value.get("schema") is None:
        raise InvalidRequest("`response_format.json_schema` must be an object with a `schema`")
    return value["schema"]
