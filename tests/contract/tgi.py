"""Checks answers against TGI's published contracts; usable on any server."""

from __future__ import annotations

from functools import cache
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from tests.contract.contracts import components, document, ref, validator
from tests.contract.recording import events

VERSIONS = ("1.3.4", "2.2.1")


def check_answer(response: httpx.Response) -> None:
    """An answer of a native route, of any status, fits both contracts."""
    path = response.request.url.path.rstrip("/") or "/"
    for version in VERSIONS:
        _check(version, response.request.method, path, response)


def check_schema(version: str, name: str, value: Any) -> None:
    """A value fits a named schema of one contract."""
    _validator(version, name).validate(value)


def _check(version: str, method: str, path: str, response: httpx.Response) -> None:
    if response.status_code != 200:
        values = _stream(response) if _kind(response) == "text/event-stream" else [response.json()]
        assert len(values) == 1
        check_schema(version, "ErrorResponse", values[0])
        assert set(values[0]) == {"error", "error_type"}
        return
    if (method, path) in (("GET", "/"), ("GET", "/ping")):
        path = "/health"
    content = document(_contract(version))["paths"][path][method.lower()]["responses"]["200"].get("content")
    if content is None:
        assert response.content == b""
        return
    assert _kind(response) in content, f"{path} answers {_kind(response)}"
    schema = content[_kind(response)]["schema"]
    if _kind(response) == "text/event-stream":
        for value in _stream(response):
            check_schema(version, "ErrorResponse" if "error" in value else "StreamResponse", value)
    elif "$ref" in schema:
        value = response.json()
        if (method, path) == ("POST", "/"):
            # The contract says an object; TGI sends, and its clients read, an array of one.
            assert isinstance(value, list)
            (value,) = value
        check_schema(version, schema["$ref"].rpartition("/")[2], value)
    else:
        assert schema == {"type": "string"}


def _stream(response: httpx.Response) -> list[Any]:
    values, done = events(response.text)
    assert not done
    return values


def _kind(response: httpx.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0]


@cache
def _validator(version: str, name: str) -> Draft202012Validator:
    return validator(components(_contract(version)), ref(name))


def _contract(version: str) -> str:
    return f"tgi-{version}"
