"""The playground's routes: what they send, to whom, and when not."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx

from tests.integration.web.serving import eventually, saying, web_node, worker

FILES = Path(__file__).parents[3] / "web/pages/playground"


async def test_the_page_and_its_files_come_from_here_alone(client: httpx.AsyncClient) -> None:
    page = await client.get("/playground")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert not re.search(r"<style|<script(?! type=\"module\" src)|\son\w+=|\sstyle=|https?://", page.text)
    linked = set(re.findall(r'(?:src|href)="playground/([^"]+)"', page.text))
    imported = {name for file in FILES.glob("*.js") for name in re.findall(r'from "\./([^"]+)"', file.read_text())}
    assert linked | imported == {file.name for file in FILES.iterdir()} - {"index.html"}, (
        "no file is missing or left over"
    )
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    for name in linked | imported:
        response = await client.get(f"/playground/{name}")
        assert response.status_code == 200
        assert response.content == (FILES / name).read_bytes()
        assert response.headers["content-type"].startswith(kinds[Path(name).suffix])
        assert response.headers["x-content-type-options"] == "nosniff"


async def test_what_is_known_is_not_sent_again(client: httpx.AsyncClient) -> None:
    for path in ("/playground", "/playground/main.js"):
        first = await client.get(path)
        assert first.headers["cache-control"] == "no-cache"
        tag = first.headers["etag"]
        for known in (tag, f'"other", W/{tag}', "*"):
            again = await client.get(path, headers={"if-none-match": known})
            assert again.status_code == 304, known
            assert again.content == b""
            assert again.headers["etag"] == tag
        assert (await client.get(path, headers={"if-none-match": '"other"'})).status_code == 200
        head = await client.head(path)
        assert head.headers["etag"] == tag
        assert head.content == b""


async def test_paths_that_are_no_files(client: httpx.AsyncClient) -> None:
    slash = await client.get("/playground/")
    assert slash.status_code == 308
    assert slash.headers["location"] == "../playground"
    for path in ("/playground/none.js", "/playground/index.html", "/playground/..%2Fdocs.html", "/playground/%2e%2e"):
        assert (await client.get(path)).status_code == 404, path


async def test_the_status_tells_of_queue_and_workers(client: httpx.AsyncClient, redis_url: str) -> None:
    async def status() -> dict[str, Any]:
        response = await client.get("/playground/status")
        assert response.headers["cache-control"] == "no-store"
        # The node remembers those of other tests' workers for a while.
        (model,) = (model for model in response.json()["models"] if model["name"] == "scripted")
        return dict(model)

    async def one_waits() -> bool:
        return bool((await status())["queued"] == 1)

    async def served() -> bool:
        model = await status()
        return bool(model["workers"] == {"ready": 1} and model["queued"] == 0)

    model = {"name": "scripted", "queued": 0, "oldest_seconds": 0.0, "running": 0, "workers": {}, "progress": 0.0}

    async def nobody() -> bool:
        return await status() == model

    await eventually(nobody)
    told = (await client.get("/playground/status")).json()
    assert (told["chat"], told["max_top_logprobs"]) == (False, 20)
    body = {"inputs": "hello", "parameters": {"max_new_tokens": 3}}
    asking = asyncio.create_task(client.post("/generate", json=body))
    await eventually(one_waits)
    async with worker(redis_url, saying("hi")):
        await eventually(served)
        assert (await asking).status_code == 200


async def test_the_status_wants_a_key_and_the_page_does_not(guarded: httpx.AsyncClient) -> None:
    assert (await guarded.get("/playground")).status_code == 200
    assert (await guarded.get("/playground/main.js")).status_code == 200
    assert (await guarded.get("/playground/status")).status_code == 401
    with_key = await guarded.get("/playground/status", headers={"authorization": "Bearer secret"})
    assert with_key.status_code == 200


async def test_it_can_be_kept_or_left_out(tmp_path: Path, redis_url: str) -> None:
    with web_node(tmp_path, redis_url, playground=False, api_key="secret", protect="all") as node:
        async with httpx.AsyncClient(base_url=node.url, headers={"authorization": "Bearer secret"}) as http:
            for path in ("/playground", "/playground/main.js", "/playground/status"):
                assert (await http.get(path)).status_code == 404
            assert not [path for path in (await http.get("/openapi.json")).json()["paths"] if "playground" in path]
            assert "playground" not in (await http.get("/docs")).text
