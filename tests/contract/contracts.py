"""The four published contracts: their operations and schemas, as JSON Schema understands them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

Schema = dict[str, Any]

NAMES = ("tgi-1.3.4", "tgi-2.2.1", "hf-text-generation", "open-inference-generate")
_SCHEMAS = Path(__file__).parent / "schemas"


@dataclass(frozen=True)
class Operation:
    """One method of one path of one contract."""

    contract: str
    method: str
    path: str

    @property
    def name(self) -> str:
        return f"{self.contract} {self.method} {self.path}"

    @property
    def _described(self) -> Schema:
        found: Schema = document(self.contract)["paths"][self.path][self.method.lower()]
        return found

    @property
    def responses(self) -> dict[int, Schema]:
        return {int(status): response for status, response in self._described["responses"].items()}

    def content(self, status: int) -> dict[str, Schema]:
        """Media type -> schema of an answer; empty for one without a body."""
        return {kind: media["schema"] for kind, media in self.responses[status].get("content", {}).items()}

    @property
    def body(self) -> Schema | None:
        """The request's schema."""
        if "requestBody" not in self._described:
            return None
        schema: Schema = self._described["requestBody"]["content"]["application/json"]["schema"]
        return schema


@cache
def document(contract: str) -> Schema:
    text = (_SCHEMAS / f"{contract}.json").read_text(encoding="utf-8")
    found: Schema = _as_json_schema(json.loads(text))
    return found


def operations() -> Iterator[Operation]:
    for contract in NAMES:
        for path, methods in document(contract)["paths"].items():
            for method in methods:
                if method in ("get", "post"):
                    yield Operation(contract, method.upper(), path)


def components(contract: str) -> dict[str, Schema]:
    found: dict[str, Schema] = document(contract)["components"]["schemas"]
    return found


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def name_of(schema: Schema) -> str | None:
    """The component a schema refers to."""
    return str(schema["$ref"]).rpartition("/")[2] if "$ref" in schema else None


def validator(schemas: dict[str, Schema], schema: Schema) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": {"schemas": schemas}})


def any_of(value: Any) -> Any:
    """The schema or schemas, with alternatives that need not exclude each other."""
    if isinstance(value, list):
        return [any_of(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {"anyOf" if key == "oneOf" else key: any_of(item) for key, item in value.items()}


def _as_json_schema(value: Any) -> Any:
    """OpenAPI 3.0's `nullable` in the words of JSON Schema."""
    if isinstance(value, list):
        return [_as_json_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _as_json_schema(item) for key, item in value.items() if key != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if value.get("nullable") is True else plain
