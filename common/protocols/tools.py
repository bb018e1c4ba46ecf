"""Which functions a chat request lets the model call."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from common.errors import InvalidRequest
from common.grammar import Grammar
from common.tool_format import ToolFormat
from common.tool_grammar import Calls, Function, tool_grammar

MAX_TOOLS = 128
"""OpenAI's limit."""
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_COMPOSING = (
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "if",
    "not",
    "oneOf",
    "patternProperties",
    "unevaluatedProperties",
)
"""Keywords that go badly with `additionalProperties: false` beside them, or make it idle."""

_NO_PARAMETERS = {"type": "object", "properties": {}}


class ToolUse(Struct, frozen=True, kw_only=True):
    """The functions that a model may call, or must."""

    shown: list[dict[str, Any]]
    """Tool objects for the prompt (`ChatTemplate.render(tools=...)`)."""
    functions: list[Function]
    required: bool
    """Whether the answer must be calls; else the model may answer in words."""
    parallel: bool
    """Whether it may make more than one call."""

    def grammar(self, form: ToolFormat) -> Grammar:
        """What the answer must match (for `Ask.grammar`: `lambda: tools.grammar(template.tool_format)`).

        Raises:
            InvalidRequest: the schemas are too large; names `grammar`, so set `Ask.names["grammar"]` to `tools`.
        """
        return tool_grammar(
            Calls(format=form.name, functions=self.functions, required=self.required, parallel=self.parallel)
        )


def read_tools(tools: Any, tool_choice: Any = None, *, parallel: bool | None = None) -> ToolUse | None:
    """Read `tools` and `tool_choice` (plain JSON values), in OpenAI's spellings and TGI's.

    `tool_choice` is `auto` (the default), `none`, `required`, a function's name, or an object that names one. A function
    without `parameters` takes none; those of others are an object of exactly the properties listed, unless their schema says
    otherwise.

    Returns:
        None when there is nothing to call: no tools, or `tool_choice` is `none`.

    Raises:
        InvalidRequest: names the place, such as `tools.3.function.name`. Whether schemas are sound is found out with the
            grammar; those errors name `tools.3.function.parameters`.
    """
    if tools is not None and not isinstance(tools, list):
        raise InvalidRequest("`tools` must be an array")
    tools = tools or []
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"`tools` takes at most {MAX_TOOLS} tools, given {len(tools)}")
    functions = [_read_function(tool, place) for place, tool in enumerate(tools)]
    _check_unique(functions)
    mode, name = _read_choice(tool_choice)
    if not functions:
        if mode == "required":
            raise InvalidRequest("`tool_choice` needs `tools` to choose from")
        return None
    if mode == "none":
        return None
    if name is not None:
        functions = [function for function in functions if function.name == name]
        if not functions:
            raise InvalidRequest("`tool_choice` must name one of the `tools`")
    return ToolUse(
        shown=[_shown(tools[function.place], function) for function in functions],
        functions=functions,
        required=mode == "required",
        # A function that is asked for by name is called once, as OpenAI does.
        parallel=parallel is not False and name is None,
    )


def _read_function(tool: Any, place: int) -> Function:
    path = f"tools.{place}"
    if not isinstance(tool, dict):
        raise InvalidRequest(f"`{path}` must be an object")
    if tool.get("type", "function") != "function":
        raise InvalidRequest(f"`{path}.type` must be `function`")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise InvalidRequest(f"`{path}.function` must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"`{path}.function.name` must have 1 to 64 letters, digits, `_`, `-` or `.`, and nothing else"
        )
    for key, kind, word in (("description", str, "string"), ("strict", bool, "boolean")):
        if function.get(key) is not None and not isinstance(function[key], kind):
            raise InvalidRequest(f"`{path}.function.{key}` must be a {word}")
    # `arguments` is TGI's other word for them.
    key = "arguments" if "parameters" not in function and "arguments" in function else "parameters"
    return Function(place, name, _read_schema(function.get(key), f"{path}.function.{key}"))


def _read_schema(schema: Any, path: str) -> dict[str, Any]:
    if schema is None:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequest(f"`{path}` must be a JSON Schema: an object")
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f"`{path}.type` must be `object`")
    whole = {"type": "object", **schema}
    if not any(keyword in schema for keyword in _COMPOSING):
        whole["additionalProperties"] = False
    return whole


def _check_unique(functions: list[Function]) -> None:
    names: set[str] = set()
    for function in functions:
        if function.name in names:
            raise InvalidRequest(f"`tools.{function.place}.function.name` is the name of another tool as well")
        names.add(function.name)


def _read_choice(choice: Any) -> tuple[str, str | None]:
    """`auto`, `none` or `required`, and the function if there is only one to choose."""
    if choice is None:
        return "auto", None
    if isinstance(choice, str):
        return (choice, None) if choice in ("auto", "none", "required") else ("required", choice)
    function = choice.get("function") if isinstance(choice, dict) else None
    if isinstance(function, dict) and isinstance(function.get("name"), str):
        return "required", function["name"]
    raise InvalidRequest(
        "`tool_choice` must be `auto`, `none`, `required`, a function's name, or an object with it in `function.name`"
    )


def _shown(tool: dict[str, Any], function: Function) -> dict[str, Any]:
    """A tool as templates expect it: with a description and parameters, which they read unasked."""
    told: dict[str, Any] = {"name": function.name}
    told |= {key: value for key, value in tool["function"].items() if key != "arguments" and value is not None}
    told.setdefault("description", "")
    told["parameters"] = told.get("parameters") or tool["function"].get("arguments") or _NO_PARAMETERS
    return {"type": "function", "function": told}
