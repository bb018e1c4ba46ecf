"""Tools and the choice among them, as requests spell them."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import InvalidRequest
from common.grammar import MAX_TOOLS_BYTES, MAX_VALUES
from common.protocols.tools import ToolUse, read_tools
from common.tool_format import HERMES
from common.tool_grammar import Function, read_calls

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: Any = "f", **others: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": SCHEMA, **others}}


def read(tools: Any, choice: Any = None, **options: Any) -> ToolUse:
    use = read_tools(tools, choice, **options)
    assert use is not None
    return use


@pytest.mark.parametrize("choice", [None, "auto"])
def test_the_model_may_decline(choice: Any) -> None:
    use = read([tool("f"), tool("g")], choice)
    assert not use.required
    assert use.parallel
    assert [function.name for function in use.functions] == ["f", "g"]


def test_it_must_call_something() -> None:
    assert read([tool()], "required").required
    assert not read([tool()], "required", parallel=False).parallel
    assert read([tool()], parallel=True).parallel


@pytest.mark.parametrize("choice", ["g", {"function": {"name": "g"}}, {"type": "function", "function": {"name": "g"}}])
def test_it_must_call_one_function_once(choice: Any) -> None:
    use = read([tool("f"), tool("g")], choice)
    assert use.required
    assert not use.parallel
    assert [(function.place, function.name) for function in use.functions] == [(1, "g")]
    assert use.shown == [tool("g")]


@pytest.mark.parametrize(
    ("tools", "choice"), [(None, None), ([], None), ([], "auto"), (None, "none"), ([tool()], "none")]
)
def test_nothing_to_call(tools: Any, choice: Any) -> None:
    assert read_tools(tools, choice) is None


@pytest.mark.parametrize(
    ("given", "schema"),
    [
        ({}, {"type": "object", "additionalProperties": False}),
        ({"parameters": None}, {"type": "object", "additionalProperties": False}),
        ({"parameters": SCHEMA}, SCHEMA | {"additionalProperties": False}),
        ({"arguments": SCHEMA}, SCHEMA | {"additionalProperties": False}),
        ({"parameters": {"properties": {}}}, {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"parameters": SCHEMA | {"additionalProperties": True}}, SCHEMA | {"additionalProperties": True}),
        (
            {"parameters": {"anyOf": [SCHEMA], "$defs": {}}},
            {"type": "object", "anyOf": [SCHEMA], "$defs": {}},
        ),
    ],
)
def test_what_arguments_may_be(given: dict[str, Any], schema: dict[str, Any]) -> None:
    use = read([{"type": "function", "function": {"name": "f", **given}}])
    assert use.functions == [Function(0, "f", schema)]


def test_what_the_model_is_shown() -> None:
    bare = {"function": {"name": "f", "arguments": SCHEMA, "strict": None}}
    (shown,) = read([bare]).shown
    assert shown == {"type": "function", "function": {"name": "f", "description": "", "parameters": SCHEMA}}
    (shown,) = read([{"function": {"name": "f"}}]).shown
    assert shown["function"]["parameters"] == {"type": "object", "properties": {}}


def test_the_grammar_holds_the_calls() -> None:
    use = read([tool("f"), tool("g-1.x")], parallel=False)
    calls = read_calls(use.grammar(HERMES).text)
    assert calls.functions == use.functions
    assert (calls.format, calls.required, calls.parallel) == ("hermes", False, False)


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ({}, None, "`tools` must be an array"),
        ("x", None, "`tools` must be an array"),
        ([tool(f"f{place}") for place in range(129)], None, "`tools` takes at most 128 tools, given 129"),
        (["x"], None, "`tools.0` must be an object"),
        ([{"type": "function"}], None, "`tools.0.function` must be an object"),
        ([{"type": "custom", "custom": {"name": "f"}}], None, "`tools.0.type` must be `function`"),
        ([tool("f"), tool("has spaces")], None, "`tools.1.function.name` must have 1 to 64 letters"),
        ([tool("")], None, "`tools.0.function.name` must"),
        ([tool("f" * 65)], None, "`tools.0.function.name` must"),
        ([tool(5)], None, "`tools.0.function.name` must"),
        ([tool("f\n")], None, "`tools.0.function.name` must"),
        ([tool("f"), tool("f")], None, "`tools.1.function.name` is the name of another tool"),
        ([tool(description=5)], None, "`tools.0.function.description` must be a string"),
        ([tool(strict="yes")], None, "`tools.0.function.strict` must be a boolean"),
        ([tool(parameters="x")], None, "`tools.0.function.parameters` must be a JSON Schema"),
        ([tool(parameters={"type": "array"})], None, "`tools.0.function.parameters.type` must be `object`"),
        ([tool("f")], "unknown", "`tool_choice` must name one of the `tools`"),
        ([tool("f")], {"function": {"name": "g"}}, "`tool_choice` must name one of the `tools`"),
        ([tool("f")], 5, "`tool_choice` must be `auto`"),
        ([tool("f")], {"type": "function"}, "`tool_choice` must be `auto`"),
        (None, "required", "`tool_choice` needs `tools`"),
        ([], {"function": {"name": "f"}}, "`tool_choice` needs `tools`"),
        # Tools that are not to be called are held to the same rules.
        ([tool("has spaces")], "none", "`tools.0.function.name` must"),
    ],
)
def test_what_is_refused(tools: Any, choice: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_tools(tools, choice)
    assert caught.value.message.startswith(f"Input validation error: {message}")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"description": "x" * (MAX_TOOLS_BYTES // 100)}, f"at most {MAX_TOOLS_BYTES} are allowed"),
        ({"enum": list(range(300))}, f"more than {4 * MAX_VALUES} values"),
    ],
    ids=["bytes", "values"],
)
def test_schemas_have_limits_together(more: dict[str, Any], reason: str) -> None:
    def use(count: int) -> ToolUse:
        return read([tool(f"f{place}", parameters=SCHEMA | more) for place in range(count)])

    use(90).grammar(HERMES)
    with pytest.raises(InvalidRequest, match=reason):
        use(128).grammar(HERMES)
