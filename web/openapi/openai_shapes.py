"""Shapes of what OpenAI's requests hold as plain JSON, because its readers (`common.protocols`) name places better."""

from __future__ import annotations

from typing import Any

from common.protocols.openai_chat_request import ChatRequest
from common.protocols.openai_completion_request import CompletionRequest

Schema = dict[str, Any]


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(properties: dict[str, Schema], *required: str, description: str = "") -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    if description:
        schema["description"] = description
    return schema


_TEXT: Schema = {"type": "string"}
_JSON_SCHEMA: Schema = {"type": "object", "description": "A JSON Schema."}
_CONTENT = {"anyOf": [_TEXT, {"type": "array", "items": _ref("ChatInputPart"), "minItems": 1}, {"type": "null"}]}

COMPONENTS: dict[str, Schema] = {
    "ChatInputPart": _object(
        {"type": {"type": "string", "enum": ["text", "refusal"]}, "text": _TEXT, "refusal": _TEXT},
        "type",
        description="A piece of text. Images and sounds are refused, and nothing is fetched.",
    ),
    "ChatInputCall": _object(
        {
            "id": _TEXT,
            "type": {"type": "string", "enum": ["function"]},
            "function": _object(
                {
                    "name": {"type": "string", "minLength": 1},
                    "arguments": {
                        "anyOf": [_TEXT, {"type": "object"}, {"type": "null"}],
                        "description": "An object, or its JSON.",
                    },
                },
                "name",
            ),
        },
        "function",
    ),
    "ChatInputMessage": _object(
        {
            "role": {"type": "string", "enum": ["system", "developer", "user", "assistant", "tool"]},
            "content": {**_CONTENT, "description": "May be left out where an assistant called functions."},
            "name": _or_null(_TEXT),
            "tool_calls": {
                **_or_null({"type": "array", "items": _ref("ChatInputCall")}),
                "description": "Calls that the assistant made.",
            },
            "tool_call_id": {**_or_null(_TEXT), "description": "The call that a tool's message answers."},
        },
        "role",
    ),
    "ChatTool": _object(
        {
            "type": {"type": "string", "enum": ["function"], "default": "function"},
            "function": _object(
                {
                    "name": {"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,64}$"},
                    "description": _or_null(_TEXT),
                    "parameters": {**_or_null(_JSON_SCHEMA), "description": "A JSON Schema, which calls are held to."},
                    "arguments": {**_or_null(_JSON_SCHEMA), "description": "TGI's word for `parameters`."},
                    "strict": _or_null({"type": "boolean"}),
                },
                "name",
            ),
        },
        "function",
    ),
    "ChatToolChoice": {
        "anyOf": [
            {
                "type": "string",
                "description": "`auto`: the model decides; `none`; `required`: at least one call; or a function's name.",
            },
            _object({"type": _TEXT, "function": _object({"name": _TEXT}, "name")}, "function"),
        ]
    },
    "ResponseFormat": _object(
        {
            "type": {"type": "string", "enum": ["text", "json_object", "json_schema", "json", "regex"]},
            "json_schema": {
                **_or_null(
                    _object({"name": _TEXT, "schema": _JSON_SCHEMA, "strict": _or_null({"type": "boolean"})}, "schema")
                ),
                "description": "With `json_schema`, as OpenAI has it.",
            },
            "schema": {**_or_null(_JSON_SCHEMA), "description": "With `json_object` or `json_schema`."},
            "value": {"description": "TGI's place for the schema, or for the expression of `regex`."},
        },
        "type",
        description="What the answer must match. A schema is always held to the letter.",
    ),
}

FIELDS: dict[type, dict[str, Schema]] = {
    ChatRequest: {
        "messages": {"type": "array", "items": _ref("ChatInputMessage"), "minItems": 1},
        "tools": _or_null({"type": "array", "items": _ref("ChatTool"), "maxItems": 128}),
        "tool_choice": _or_null(_ref("ChatToolChoice")),
        "response_format": _or_null(_ref("ResponseFormat")),
    },
    CompletionRequest: {"response_format": _or_null(_ref("ResponseFormat"))},
}
"""Request model -> field -> what it holds."""
