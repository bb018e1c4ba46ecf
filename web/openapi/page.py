"""The OpenAPI document as one page of HTML, without scripts and without anything from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

_PAGES = Path(__file__).parents[1] / "pages"
_STYLE = (_PAGES / "docs.css").read_text(encoding="utf-8").removesuffix("\n")
"""As the template includes it."""
_REF = "#/components/schemas/"
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "maxItems": "items ≤"}

_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing but the page's own style."""


def render_page(document: dict[str, Any]) -> bytes:
    environment = Environment(loader=FileSystemLoader(_PAGES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["kind"] = kind
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    environment.filters["bounds"] = bounds
    operations = [
        {"path": path, "method": method, **operation}
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method != "parameters"
    ]
    return environment.get_template("docs.html").render(document=document, operations=operations).encode()


def kind(schema: dict[str, Any]) -> Markup:
    """A schema in a few words, with links to those that have names."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REF)
        return Markup('<a href="#schema-{0}">{0}</a>').format(name)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return Markup(" or ").join(kind(part) for part in schema[word])
    if "allOf" in schema:
        return Markup(" and ").join(kind(part) for part in schema["allOf"])
    if "const" in schema:
        return escape(json.dumps(schema["const"]))
    if "enum" in schema:
        return Markup(" | ").join(escape(json.dumps(value)) for value in schema["enum"])
    if schema.get("type") == "array":
        return Markup("array of ") + kind(schema.get("items", {}))
    return escape(schema.get("type", "anything"))


def bounds(schema: dict[str, Any]) -> str:
    """Limits and default in a few words."""
    parts = [part for part in [schema, *schema.get("anyOf", [])] if isinstance(part, dict)]
    words = [f"{sign} {part[word]}" for part in parts for word, sign in _BOUNDS.items() if word in part]
    if "default" in schema:
        words.append(f"default {json.dumps(schema['default'])}")
    return ", ".join(words)
