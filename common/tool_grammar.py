"""The grammar of answers that may call functions, or must: arguments always match their function's schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from common.grammar import Grammar, dump_schema
from common.tool_format import FORMATS, NEWLINE, SPACE, ToolFormat


class Function(Struct, frozen=True, array_like=True):
    """What may be called."""

    place: int
    """In the request's `tools`; errors name it."""
    name: str
    """Letters, digits, `_`, `-` and `.`."""
    schema: dict[str, Any]
    """Of the arguments."""


class Calls(Struct, frozen=True):
    """What `Grammar.text` holds for the kind `tools`."""

    format: str
    """Name of a `ToolFormat`."""
    functions: list[Function]
    required: bool
    """Whether the answer must be calls; else it may be any text, and calls may follow it."""
    parallel: bool
    """Whether there may be more than one call."""


def tool_grammar(calls: Calls) -> Grammar:
    """
    Raises:
        InvalidRequest: the schemas are too large.
    """
    grammar = Grammar("tools", dump_schema(msgspec.to_builtins(calls)))
    grammar.check()
    return grammar


def read_calls(text: str) -> Calls:
    """
    Raises:
        ValueError: the text is none that `tool_grammar` made.
    """
    calls = msgspec.json.decode(text, type=Calls)
    if calls.format not in FORMATS:
        raise ValueError(f"there is no format `{calls.format}`")
    if not calls.functions:
        raise ValueError("there are no functions")
    return calls


def lark(
    calls: Calls, special: Callable[[str], int | None], specials: Iterable[int], json_options: Mapping[str, Any]
) -> str:
    """The grammar in llguidance's variant of Lark.

    Free text is anything that does not begin a call, special tokens included. Where a marker is a special token of the
    model's, only the token marks a call, and free text must not spell it.

    Args:
        special: the id of the special token with this text, if there is one.
        specials: ids that free text may hold besides text: all special tokens but end-of-text.
        json_options: llguidance's, for the arguments.
    """
    form = FORMATS[calls.format]
    rule = _Pieces(special)
    functions = range(len(calls.functions))
    more = f"({rule.of(form.next)} call)*" if calls.parallel else ""
    lines = [
        f"rest: call {more} {rule.of(form.closing)}",
        f"call: ({' | '.join(f'call_{i}' for i in functions)}) {rule.of(form.tail)}",
    ]
    for i, function in zip(functions, calls.functions, strict=True):
        schema = json.dumps({**function.schema, "x-guidance": json_options})
        head = rule.of((*form.head, function.name, *form.middle))
        if "<[" in head:
            lines.append(f"call_{i}: {head} %json {schema}")
        else:
            # One lexeme: text that begins like a call and is none (`{"n`) is told from it by the lexer alone.
            lines += [f"call_{i}: HEAD_{i} %json {schema}", f"HEAD_{i}: {head}"]
    prelude = special(form.prelude) if form.prelude else None
    opening = ("" if prelude is None else f"<[{prelude}]>? ") + rule.of(form.opening)
    if calls.required:
        return "\n".join([f"start: {opening} rest", *lines])
    others = ",".join(str(i) for i in specials if i not in (prelude, special(form.marker)))
    return "\n".join([*_free(form, rule, opening, f"<[{others}]>" if others else ""), *lines])


def _free(form: ToolFormat, rule: _Pieces, opening: str, other: str) -> list[str]:
    """Rules of `start` where the answer may be text."""
    marker = json.dumps(form.marker) if form.marker else r'/\s*\{\s*"name"/'
    anywhere = "ANY" if form.marker else ""
    lines = [
        "ANY: /(?s:.*)/",
        f"BEGINS: {anywhere} {marker} ANY",
        "TEXT: ANY & ~BEGINS",
        f"free: TEXT ({other} TEXT)*" if other else "free: TEXT",
    ]
    if not form.marker:
        return [f"start: free | {opening} rest", *lines]
    if rule.special(form.marker) is not None:
        return [f"start: free | free {opening} rest", *lines]
    before = f"(TEXT {other})* " if other else ""
    return [
        f"start: free | {before}marked {rule.of(form.opening[1:])} rest",
        f"marked[lazy]: ANY {json.dumps(form.marker)}",
        *lines,
    ]


class _Pieces:
    """Pieces of a format as parts of a rule."""

    def __init__(self, special: Callable[[str], int | None]) -> None:
        self.special = special

    def of(self, pieces: Iterable[str]) -> str:
        return " ".join(map(self._piece, pieces))

    def _piece(self, piece: str) -> str:
        if piece in (SPACE, NEWLINE):
            return f"{json.dumps(piece)}?"
        token = self.special(piece) if len(piece) > 1 else None
        return json.dumps(piece) if token is None else f"<[{token}]>"
