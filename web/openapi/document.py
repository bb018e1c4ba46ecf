"""The OpenAPI 3.1 document of this service, made from its routes, request models and answer structs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from common import __version__
from common.settings import Settings
from web.access import needs_key
from web.openapi import openai_shapes
from web.openapi.headers import HEADERS, REQUEST_HEADERS, parameters
from web.openapi.limits import limits
from web.openapi.operation import Operation
from web.openapi.operations import OPERATIONS, TAGS
from web.openapi.responses import Responses, error_struct
from web.openapi.schemas import Schemas
from web.resources.resource import Resource

_DESCRIPTION = """\
Text generation on a queue, spoken as Hugging Face's Text Generation Inference, as OpenAI's API and as the Open Inference
Protocol.

Every route that takes GET takes HEAD too. Every answer has `x-request-id`. Unknown keys of a body have no effect and are
named in `x-ignored-parameters`; a null is the same as leaving the key out. Errors are told in the form of their API.

A stream is made of server-sent events whose `data` is JSON of the given schema, one line each. Lines that begin with a
colon keep the connection alive and say nothing. An error after the first token is the last event, in the form of the
error bodies. A client that accepts `text/event-stream` alone gets every error of a stream as such an event."""

_KEY = "bearerAuth"
_PARAMETER = re.compile(r"\{(\w+)(?::[^}]*)?\}")


def build_document(settings: Settings, routes: Mapping[str, type[Resource]]) -> dict[str, Any]:
    """The document as this service's settings make it.

    Args:
        routes: path -> resource; what is documented and not among them is left out.

    Raises:
        ValueError: two classes would be the same schema.
    """
    operations = {at: operation for at, operation in OPERATIONS.items() if at[0] in routes}
    answers = [
        kind
        for (path, _), operation in operations.items()
        for kind in (*operation.answers, *operation.event_types, error_struct(path, settings))
    ]
    models = [model for operation in operations.values() for model in operation.bodies]
    schemas = Schemas(
        models,
        answers,
        shapes=openai_shapes.COMPONENTS,
        fields=openai_shapes.FIELDS,
        limits=limits(settings),
    )
    responses = Responses(schemas, settings)
    paths: dict[str, dict[str, Any]] = {}
    with_keys = settings.api_key is not None or settings.api_keys_file is not None
    for (path, method), operation in operations.items():
        everything = settings.protect == "all"
        protected = needs_key(method.upper(), path, protected=routes[path].protected, everything=everything)
        described: dict[str, Any] = {
            "operationId": operation.id,
            "tags": [operation.tag],
            "summary": operation.summary,
            "responses": responses.of(path, operation, protected=protected),
        }
        described["parameters"] = parameters(*operation.request_headers) + [
            {"name": name, "in": "query", "required": False, **told} for name, told in operation.query.items()
        ]
        if operation.description:
            described["description"] = operation.description
        if operation.bodies:
            described["requestBody"] = _body(operation, schemas)
        if operation.form is not None:
            described["requestBody"] = {
                "required": True,
                "content": {"multipart/form-data": {"schema": operation.form}},
            }
        if protected:
            described["security"] = [{_KEY: []}] if with_keys else [{_KEY: []}, {}]
        public = _PARAMETER.sub(r"{\1}", path)
        paths.setdefault(public, _parameters(path))[method] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "tgq", "version": __version__, "description": _DESCRIPTION},
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "headers": HEADERS,
            "parameters": {
                name: {"name": name, "in": "header", "required": False, **described}
                for name, described in REQUEST_HEADERS.items()
            },
            "securitySchemes": {_KEY: {"type": "http", "scheme": "bearer", "description": "A key of this service."}},
        },
    }


def _body(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": schemas.of(*operation.bodies)}
    if operation.example is not None:
        content["example"] = operation.example
    return {"required": True, "content": {"application/json": content}}


def _parameters(path: str) -> dict[str, Any]:
    names = _PARAMETER.findall(path)
    if not names:
        return {}
    schema = {"type": "string", "minLength": 1}
    return {"parameters": [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]}
