"""The OpenAPI document: complete, valid, stable, and true to the classes it is made of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from falcon.routing import map_http_methods
from jsonschema import Draft202012Validator
from msgspec import UNSET, Struct, UnsetType
from openapi_spec_validator import OpenAPIV31SpecValidator

from common.errors import BadRequest, InvalidRequest, MethodNotAllowed, NotFound, TgqError, Unauthorized
from common.protocols.json_body import RequestModel
from common.settings import Settings
from web.openapi.document import build_document
from web.openapi.operations import OPERATIONS, TAGS
from web.openapi.page import render_page
from web.openapi.schemas import Schemas
from web.routes import DOCUMENTATION, PLAYGROUND, ROUTES

ALL_ROUTES = {**ROUTES, **PLAYGROUND, **DOCUMENTATION}
UNDOCUMENTED_METHODS = {"HEAD", "OPTIONS"}
"""HEAD goes with every GET, OPTIONS is for browsers."""
WITHOUT_BODY = {"cancel_batch"}
"""POST that takes none."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return build_document(Settings(), ALL_ROUTES)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method != "parameters":
                yield path, method, operation


def routed(public: str) -> str:
    """A path of the document as the route table has it."""
    return next(path for path in ALL_ROUTES if re.sub(r":\w+\}", "}", path) == public)


def test_valid_by_the_official_schema(document: dict[str, Any]) -> None:
    OpenAPIV31SpecValidator(document).validate()
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_route_is_documented_and_nothing_else() -> None:
    routed = {
        (path, method.lower())
        for path, resource in ALL_ROUTES.items()
        for method in map_http_methods(resource)
        if method not in UNDOCUMENTED_METHODS
    }
    assert set(OPERATIONS) == routed


def test_every_get_takes_head() -> None:
    for path, resource in ALL_ROUTES.items():
        methods = set(map_http_methods(resource))
        assert ("GET" in methods) == ("HEAD" in methods), path


def test_every_operation_is_told_in_full(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)
    for path, method, operation in operations(document):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["tags"][0] in TAGS, where
        assert {"200", "500"} <= set(operation["responses"]), where
        assert all(response["description"] for response in operation["responses"].values()), where
        assert all("x-request-id" in response["headers"] for response in operation["responses"].values()), where
        if method == "post" and operation["operationId"] not in WITHOUT_BODY:
            assert "requestBody" in operation, where
            assert {"400", "413", "415"} <= set(operation["responses"]), where
            rules = {BadRequest, InvalidRequest} & set(OPERATIONS[routed(path), method].errors)
            assert len(rules) == 1, where


def test_errors_are_in_the_form_of_their_api(document: dict[str, Any]) -> None:
    def forms(of: dict[str, Any]) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for path, _, operation in operations(of):
            family = next((family for family in ("/v1", "/v2") if path.startswith(family)), "/")
            for status, response in operation["responses"].items():
                if status != "200" and operation["operationId"] != "startup":  # whose answer has a status of its own
                    found.setdefault(family, set()).update(
                        media["schema"]["$ref"].rpartition("/")[2] for media in response["content"].values()
                    )
        return found

    told = forms(document)
    assert told["/"] == {"ErrorResponse"}
    assert told.get("/v1", {"OpenAIErrorResponse"}) == {"OpenAIErrorResponse"}
    assert told.get("/v2", {"OpenInferenceErrorResponse"}) == {"OpenInferenceErrorResponse"}
    flat = forms(build_document(Settings.of(error_format="tgi"), ALL_ROUTES))
    assert flat.get("/v1", {"ErrorResponse"}) == {"ErrorResponse"}


def test_every_error_is_documented() -> None:
    def kinds(kind: type[TgqError]) -> Iterator[type[TgqError]]:
        if kind.__module__ == "common.errors":  # and not those that never leave a worker
            yield kind
        for sub in kind.__subclasses__():
            yield from kinds(sub)

    told = {kind for operation in OPERATIONS.values() for kind in operation.all_errors}
    # Of every route, of protected ones, and of no route at all.
    elsewhere = {TgqError, Unauthorized, NotFound, MethodNotAllowed}
    assert set(kinds(TgqError)) - told == elsewhere


def test_keys_are_wanted_where_the_settings_want_them(document: dict[str, Any]) -> None:
    generate = document["paths"]["/generate"]["post"]
    assert {} in generate["security"]
    assert "401" in generate["responses"]
    guarded = build_document(Settings.of(api_key="secret"), ALL_ROUTES)
    assert guarded["paths"]["/generate"]["post"]["security"] == [{"bearerAuth": []}]
    assert "security" not in guarded["paths"]["/health"]["get"]
    assert "secret" not in json.dumps(guarded)


def test_examples_fit_their_schemas(document: dict[str, Any]) -> None:
    examples = 0
    for _, _, operation in operations(document):
        for media in operation.get("requestBody", {"content": {}})["content"].values():
            if "example" in media:
                schema = {**media["schema"], "components": document["components"]}
                Draft202012Validator(schema).validate(media["example"])
                examples += 1
    assert examples > 3


def test_the_page_tells_every_operation_and_schema(document: dict[str, Any]) -> None:
    page = render_page(document).decode()
    for path, _, operation in operations(document):
        assert f'id="{operation["operationId"]}"' in page
        assert f"<code>{path}</code>" in page
    for name in document["components"]["schemas"]:
        assert f'id="schema-{name}"' in page
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page


class Inner(Struct, tag="inner"):
    value: int


class Outer(Struct, rename={"kind_": "kind"}):
    kind_: str
    """What it is."""
    maybe: int | UnsetType = UNSET
    inner: Inner | None = None
    items: list[Inner] = []


class Body(RequestModel):
    """A body."""

    text: str
    limit: int | None = None
    flag: bool = False


def test_schemas_tell_what_is_always_there_and_what_may_be_null() -> None:
    schemas = Schemas([Body], [list[Outer]])
    assert schemas.of(list[Outer]) == {"type": "array", "items": {"$ref": "#/components/schemas/Outer"}}
    outer, inner, body = (schemas.components[name] for name in ("Outer", "Inner", "Body"))
    assert outer["required"] == ["kind", "inner", "items"]
    assert outer["properties"]["kind"]["description"] == "What it is."
    assert inner["required"] == ["type", "value"]
    assert body["required"] == ["text"]
    assert body["properties"]["text"] == {"type": "string"}
    assert body["properties"]["flag"] == {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": False}
    assert body["properties"]["limit"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}


def test_two_classes_of_one_name_are_refused() -> None:
    class Inner(Struct):
        other: str

    with pytest.raises(ValueError, match="Inner"):
        Schemas([], [Outer, Inner])
