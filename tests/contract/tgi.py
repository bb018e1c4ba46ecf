"""Checks answers against TGI's published contracts; usable on any server."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from jsonschema import Draft202012Validator

VERSIONS = ("1.3.4", "2.2.1")
_SCHEMAS = Path(__file__).parent / "schemas"


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
        values = _events(response.text) if _kind(response) == "text/event-stream" else [response.json()]
        assert len(values) == 1
        check_schema(version, "ErrorResponse", values[0])
        assert set(values[0]) == {"error", "error_type"}
        return
    if (method, path) in (("GET", "/"), ("GET", "/ping")):
        path = "/health"
    content = _contract(version)["paths"][path][method.lower()]["responses"]["200"].get("content")
    if content is None:
        assert response.content == b""
        return
    assert _kind(response) in content, f"{path} answers {_kind(response)}"
    schema = content[_kind(response)]["schema"]
    if _kind(response) == "text/event-stream":
        for value in _events(response.text):
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


def _kind(response: httpx.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0]


def _events(text: str) -> list[Any]:
    lines = [line for line in text.split("\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@cache
def _contract(version: str) -> dict[str, Any]:
    contract: dict[str, Any] = json.loads((_SCHEMAS / f"tgi-{version}.json").read_text(encoding="utf-8"))
    return contract


@cache
def _validator(version: str, name: str) -> Draft202012Validator:
    schemas = _as_json_schema(_contract(version)["components"]["schemas"])
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}})


def _as_json_schema(value: Any) -> Any:
    """OpenAPI 3.0's `nullable` in the words of JSON Schema."""
    if isinstance(value, list):
        return [_as_json_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _as_json_schema(item) for key, item in value.items() if key != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if value.get("nullable") is True else plain
