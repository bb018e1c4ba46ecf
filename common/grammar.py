"""What a constrained answer must match, and the limits of size that keep hostile grammars out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Literal

from msgspec import Struct

from common.errors import InvalidRequest

MAX_SCHEMA_BYTES = 65_536
MAX_REGEX_BYTES = 8_192
MAX_TOOLS_BYTES = 262_144
"""The schemas of all functions together."""
MAX_DEPTH = 48
"""Objects and arrays within one another. Recursion by `$ref` is not depth: it costs nothing to compile."""
MAX_VALUES = 8_192
"""Objects, arrays, strings and numbers in a schema; four times as many in those of all functions together."""
MAX_MULTIPLES = 20_000
"""Sum of a schema's `multipleOf`, decimal points left out: each one costs as many automaton states."""


_MAX_BYTES = {"json": MAX_SCHEMA_BYTES, "regex": MAX_REGEX_BYTES, "tools": MAX_TOOLS_BYTES}


class Grammar(Struct, frozen=True):
    """A constraint on the whole answer, from its first token on."""

    kind: Literal["json", "regex", "tools"]
    text: str
    """A JSON Schema (2020-12) as JSON, a regular expression, or calls of functions (`common.tool_grammar.Calls` as JSON)."""

    def check(self) -> None:
        """Refuse what is too large to compile, without compiling anything.

        Raises:
            InvalidRequest: names the limit.
        """
        size = len(self.text.encode(errors="surrogatepass"))
        limit = _MAX_BYTES[self.kind]
        if size > limit:
            raise grammar_error(f"it has {size} bytes, at most {limit} are allowed")
        if self.kind != "regex":
            _check_shape(_parse(self.text), MAX_VALUES if self.kind == "json" else 4 * MAX_VALUES)


def read_grammar(kind: str, value: Any) -> Grammar:
    """The grammar of a native request, with TGI's rules.

    Args:
        kind: `json` or its alias `json_object` (value: a schema, or a string that holds one as JSON), `json_schema`
            (value: an object with the schema in `schema`), or `regex` (value: a string).

    Raises:
        InvalidRequest: the value has another type, is too large, or is a schema without a top-level `properties`.
    """
    if kind == "regex":
        if not isinstance(value, str):
            raise grammar_error("the value of a `regex` must be a string")
        return regex_grammar(value)
    if kind == "json_schema":
        if not (isinstance(value, dict) and "schema" in value):
            raise grammar_error("the value of a `json_schema` must be an object with a `schema`")
        value = value["schema"]
    schema = _read_schema(value)
    if not isinstance(schema.get("properties"), dict):
        raise grammar_error("a schema must have a `properties` field that is an object")
    return json_grammar(schema)


def json_grammar(schema: Any) -> Grammar:
    """The grammar of a JSON Schema of any kind of value.

    Args:
        schema: an object, or a string that holds one as JSON.

    Raises:
        InvalidRequest: it is something else, or too large.
    """
    grammar = Grammar("json", dump_schema(_read_schema(schema)))
    grammar.check()
    return grammar


def regex_grammar(expression: str) -> Grammar:
    """
    Raises:
        InvalidRequest: it is too large.
    """
    grammar = Grammar("regex", expression)
    grammar.check()
    return grammar


def grammar_error(reason: str, field: str = "grammar") -> InvalidRequest:
    """The error for a grammar, or a part of one, that cannot be used."""
    return InvalidRequest(f"`{field}` is not valid: {reason}")


def _read_schema(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        if len(value) > MAX_SCHEMA_BYTES:
            raise grammar_error(f"it has more than {MAX_SCHEMA_BYTES} bytes")
        value = _parse(value)
    if not isinstance(value, dict):
        raise grammar_error("a schema must be an object, or a string that holds one as JSON")
    return value


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise grammar_error(f"it is nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        raise grammar_error(f"it is not JSON: {error}") from None


def dump_schema(value: Any) -> str:
    """A schema as JSON, its keys in their order: that of the answer's.

    Raises:
        InvalidRequest: it is nested too deeply, or holds what JSON has not.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise grammar_error(f"it is nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        raise grammar_error(str(error)) from None


def _check_shape(schema: Any, max_values: int) -> None:
    level, depth, count, multiples = [schema], 0, 0, 0
    while level:
        depth += 1
        count += len(level)
        if depth > MAX_DEPTH:
            raise grammar_error(f"it is nested more than {MAX_DEPTH} levels deep")
        if count > max_values:
            raise grammar_error(f"it has more than {max_values} values")
        multiples += sum(
            _digits(value["multipleOf"]) for value in level if isinstance(value, dict) and "multipleOf" in value
        )
        if multiples > MAX_MULTIPLES:
            raise grammar_error(f"its `multipleOf` values are larger than {MAX_MULTIPLES}")
        level = [child for value in level for child in _children(value)]


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _digits(value: Any) -> int:
    """The number's digits before the zeros at its end: 0.25 and 2500 are 25."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    digits = "".join(map(str, Decimal(repr(value)).as_tuple().digits)).strip("0")
    return int(digits[:10] or 0)
