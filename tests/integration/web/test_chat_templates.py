"""Cases from other servers' bug reports that need a template of another kind than the default model's, or none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ops.embedded_redis import EmbeddedRedis
from tests.byte_model import write_byte_model
from tests.chat_templates import STRICT
from tests.integration.web.serving import WebNode, saying, web_node, worker

SYSTEM = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
TWICE = [{"role": "user", "content": "u"}, {"role": "user", "content": "u"}]
ONCE = [{"role": "user", "content": "u"}]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, redis_server: EmbeddedRedis) -> Iterator[dict[str, WebNode]]:
    def folder(name: str, chat_template: str | None) -> Path:
        made = tmp_path_factory.mktemp(name)
        write_byte_model(made, chat_template=chat_template)
        return made

    with (
        web_node(folder("strict", STRICT), redis_server.url) as strict,
        web_node(folder("none", None), redis_server.url) as none,
    ):
        yield {"strict": strict, "none": none}


async def refused(node: WebNode, messages: list[dict[str, Any]], reason: str) -> None:
    """By every route that takes a chat, whole and as a stream, in each route's form; nothing is queued."""
    async with httpx.AsyncClient(base_url=node.url, timeout=30) as client:
        for fields in ({}, {"stream": True}):
            response = await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 5} | fields)
            assert response.status_code == 422
            assert response.headers["content-type"] == "application/json"
            error = response.json()["error"]
            assert (error["message"], error["code"]) == (f"Template error: {reason}", "template_error")
        for path in ("/chat_tokenize", "/invocations"):
            response = await client.post(path, json={"messages": messages})
            assert response.status_code == 422
            assert response.json() == {"error": f"Template error: {reason}", "error_type": "template_error"}


async def test_d02_no_system_message(nodes: dict[str, WebNode]) -> None:
    await refused(nodes["strict"], SYSTEM, "System role not supported")


async def test_d08_roles_must_alternate(nodes: dict[str, WebNode]) -> None:
    reason = "Conversation roles must alternate user/assistant/user/assistant/..."
    await refused(nodes["strict"], TWICE, reason)


async def test_d09_no_template(nodes: dict[str, WebNode], redis_url: str) -> None:
    await refused(nodes["none"], ONCE, "the model has no chat template")
    async with httpx.AsyncClient(base_url=nodes["none"].url, timeout=30) as client, worker(redis_url, saying("ok")):
        assert (await client.get("/info")).json()["chat"] is False
        answer = await client.post("/generate", json={"inputs": "u", "parameters": {"max_new_tokens": 5}})
        assert answer.json() == {"generated_text": "ok"}
    async with httpx.AsyncClient(base_url=nodes["strict"].url, timeout=30) as client:
        assert (await client.get("/info")).json()["chat"] is True


async def test_tools_without_a_system_message(nodes: dict[str, WebNode]) -> None:
    tool = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}
    async with httpx.AsyncClient(base_url=nodes["strict"].url, timeout=30) as client:
        response = await client.post("/chat_tokenize", json={"messages": ONCE, "tools": [tool]})
    prompt = response.json()["templated_text"]
    assert prompt.startswith("<start_of_turn>user\n")
    assert '"name": "get_time"' in prompt
    assert prompt.endswith("u<end_of_turn>\n<start_of_turn>model\n")
