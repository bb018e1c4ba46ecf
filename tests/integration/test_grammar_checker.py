"""Grammars tried in processes of their own: good ones, bad ones, and hostile ones beside live traffic."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from common.errors import InvalidRequest, ServiceUnavailable
from common.grammar import Grammar, read_grammar
from common.grammar_checker import GrammarChecker

TIMEOUT = 5.0
SLOW = Grammar("json", '{"properties":{"a":{"type":"integer","multipleOf":999983}},"required":["a"]}')
"""Takes 20 seconds; the limits of size refuse it, so that it never gets here."""


@pytest.fixture
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker(TIMEOUT)
    yield checker
    checker.close()


def schema(properties: dict[str, Any], **keywords: Any) -> Grammar:
    return read_grammar("json", {"type": "object", "properties": properties, "required": list(properties), **keywords})


def one_of(depth: int) -> Grammar:
    value: dict[str, Any] = {"type": "string"}
    for level in range(depth):
        value = {"oneOf": [value, {"type": "array", "minItems": level}]}
    return schema({"a": value})


HOSTILE = {
    "nested repetition": Grammar("regex", "(a+)+b"),
    "long repetition": Grammar("regex", "a{1,99999}"),
    "repeated repetition": Grammar("regex", "((a{1,100}){1,100}){1,100}"),
    "exponential automaton": Grammar("regex", "(a|b)*a(a|b){25}"),
    "many words": Grammar("regex", "|".join(f"word{i}" for i in range(800))),
    "oneOf in oneOf": one_of(20),
    "mutual recursion": schema(
        {"a": {"$ref": "#/$defs/a"}}, **{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "recursion without end": schema({"a": {"$ref": "#"}}),
    "a thousand optional fields": read_grammar(
        "json", {"type": "object", "properties": {f"field{i}": {"type": "integer"} for i in range(1_000)}}
    ),
    "exponential patterns": schema(
        {f"f{i}": {"type": "string", "pattern": f"^(a|b)*a(a|b){{{i % 20}}}$"} for i in range(200)}
    ),
    "intersected patterns": schema(
        {"a": {"type": "string", "allOf": [{"pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(5, 15)]}}
    ),
    "multiples": schema({"a": {"type": "integer", "multipleOf": 19_997}}),
    "many numbers": schema({"a": {"anyOf": [{"type": "number", "minimum": i + 0.5} for i in range(500)]}}),
    "a huge array": schema({"a": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9}}),
}

REFUSED = {
    "an unclosed class": (Grammar("regex", "[unclosed"), "unclosed character class"),
    "an unclosed group": (Grammar("regex", "(a"), "unclosed group"),
    "look-ahead": (Grammar("regex", "(?=a)b"), "look-around"),
    "a back reference": (Grammar("regex", r"(a)\1"), "backreferences are not supported"),
    "a regex that matches nothing": (Grammar("regex", r"a[^\s\S]"), "`grammar` is not valid"),
    "an unknown type": (schema({"a": {"type": "zorg"}}), "is no JSON Schema: 'zorg' is not valid"),
    "a negative length": (schema({"a": {"minLength": -1}}), "at `/properties/a/minLength`"),
    "not": (schema({"a": {"not": {"type": "string"}}}), 'Unimplemented keys: ["not"]'),
    "if": (schema({"a": {}}, **{"if": {}, "then": {}}), "Unimplemented keys"),
    "uniqueItems": (schema({"a": {"type": "array", "uniqueItems": True}}), 'Unimplemented keys: ["uniqueItems"]'),
    "contains": (schema({"a": {"type": "array", "contains": {}}}), 'Unimplemented keys: ["contains"]'),
    "an unknown format": (schema({"a": {"type": "string", "format": "zorg"}}), "Unknown format: zorg"),
    "overlapping oneOf": (
        schema({"a": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}}),
        "oneOf constraints are not supported",
    ),
    "a reference elsewhere": (schema({"a": {"$ref": "https://example.com/a"}}), "is not present"),
    "a reference to nothing": (schema({"a": {"$ref": "#/$defs/a"}}), "does not exist"),
    "a contradiction": (schema({"a": {"type": "integer", "minimum": 5, "maximum": 3}}), "Unsatisfiable schema"),
    "the compiler's own options": (schema({"a": {}}, **{"x-guidance": {"lenient": True}}), "x-guidance"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_be_enforced_is_refused(checker: GrammarChecker, name: str) -> None:
    grammar, message = REFUSED[name]
    for _ in range(2):  # Once more, from memory.
        with pytest.raises(InvalidRequest) as caught:
            await checker.check(grammar)
        assert caught.value.message.startswith("Input validation error: `grammar` is not valid: ")
        assert message in caught.value.message


async def test_hostile_grammars_end_within_the_limit_and_stall_nobody(checker: GrammarChecker) -> None:
    """Whether they can be used or not: the event loop goes on, and each one ends in time."""
    worst = 0.0
    over = asyncio.Event()

    async def watch() -> None:
        nonlocal worst
        while not over.is_set():
            before = time.monotonic()
            await asyncio.sleep(0.005)
            worst = max(worst, time.monotonic() - before)

    async def check(grammar: Grammar) -> None:
        with contextlib.suppress(InvalidRequest):
            await checker.check(grammar)

    watcher = asyncio.create_task(watch())
    async with asyncio.timeout(TIMEOUT * len(HOSTILE)):
        await asyncio.gather(*(check(grammar) for grammar in HOSTILE.values()))
    over.set()
    await watcher
    assert worst < 3.0  # one of them alone may take as long as the limit


async def test_one_that_takes_too_long_is_killed_and_the_next_one_is_checked() -> None:
    checker = GrammarChecker(1.0, processes=1)
    try:
        with pytest.raises(InvalidRequest, match=r"takes more than 1 seconds"):
            await checker.check(SLOW)
        await checker.check(Grammar("regex", "a+"))
        with pytest.raises(InvalidRequest, match=r"takes more than 1 seconds"):
            await checker.check(SLOW)
    finally:
        checker.close()


async def test_one_that_ends_its_process_is_refused() -> None:
    checker = GrammarChecker(TIMEOUT, processes=1)
    try:
        await checker.check(Grammar("regex", "a+"))
        process = checker._processes[0]._process
        assert process is not None
        slow = asyncio.create_task(checker.check(SLOW))
        async with asyncio.timeout(10):
            while checker._idle:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        process.kill()
        with pytest.raises(InvalidRequest, match=r"too complex|takes more than"):
            await slow
        await checker.check(Grammar("regex", "b+"))
    finally:
        checker.close()


async def test_no_process_is_an_error_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    checker = GrammarChecker(TIMEOUT)
    try:
        with pytest.raises(ServiceUnavailable, match="cannot be checked"):
            await checker.check(Grammar("regex", "a"))
    finally:
        checker.close()
