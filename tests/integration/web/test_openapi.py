"""The documentation's routes: what they serve, and that nothing in the page comes from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re

import httpx
from openapi_spec_validator import OpenAPIV31SpecValidator


async def test_the_document_is_served_at_both_addresses(client: httpx.AsyncClient) -> None:
    responses = [await client.get(path) for path in ("/openapi.json", "/api-doc/openapi.json")]
    for response in responses:
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
    document = responses[0].json()
    OpenAPIV31SpecValidator(document).validate()
    assert responses[1].content == responses[0].content
    assert {"/", "/generate", "/generate_stream", "/tokenize", "/info", "/health"} <= set(document["paths"])


async def test_the_document_tells_of_keys_but_needs_none(guarded: httpx.AsyncClient) -> None:
    response = await guarded.get("/openapi.json")
    assert response.status_code == 200
    assert response.json()["paths"]["/generate"]["post"]["security"] == [{"bearerAuth": []}]
    assert "secret" not in response.text


async def test_the_page_allows_nothing_but_its_own_style(client: httpx.AsyncClient) -> None:
    for path in ("/docs", "/docs/"):
        response = await client.get(path)
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/html")
    (style,) = re.findall(r"<style>(.*?)</style>", response.text, re.DOTALL)
    fingerprint = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert f"style-src 'sha256-{fingerprint}'" in policy
    assert "script-src" not in policy
    assert not re.findall(r"""(?:src|href)=["'](?!#|openapi\.json|playground)""", response.text)
    assert " style=" not in response.text


async def test_head_answers_like_get_without_a_body(client: httpx.AsyncClient) -> None:
    for path in ("/openapi.json", "/docs"):
        response = await client.head(path)
        assert response.status_code == 200
        assert response.content == b""
        assert int(response.headers["content-length"]) > 1000
