"""B10: each request leaves one line that says how it ended and how far it came."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.wire import Failed, Finish, Job, Token, Tokens
from ops.embedded_redis import EmbeddedRedis
from tests.integration.client.fake_worker import FakeWorker, until
from tests.integration.web.serving import WebNode, web_node, worker


@pytest.fixture(scope="module")
def node(node_folder: Path, redis_server: EmbeddedRedis) -> Iterator[WebNode]:
    with web_node(node_folder / "logged", redis_server.url, max_attempts=1) as node:
        yield node


async def as_its_prompt_says(fake: FakeWorker, job: Job) -> None:
    """Two tokens, and then what the length of its prompt tells."""
    await fake.accept(job)
    for index in range(2):
        await fake.emit(job, Tokens(index, [Token(65, "A", -1.0, False)]))
    match len(job.prompt_ids):
        case 3:
            await fake.emit(job, Tokens(2, [Token(66, "B", -1.0, False)], Finish("length", 3, 0.01)))
        case 4:
            await fake.emit(job, Failed("generation", "the engine is gone", retryable=True))
        case _:
            await fake.go.wait()


async def test_b10_one_line_for_each_end(node: WebNode, redis_url: str) -> None:
    def line(name: str) -> dict[str, Any] | None:
        lines = [line for line in node.log_lines() if line.get("request_id") == name]
        assert len(lines) <= 1, lines
        return lines[0] if lines else None

    async with worker(redis_url, as_its_prompt_says), httpx.AsyncClient(base_url=node.url, timeout=30) as http:

        def ask(name: str, prompt: str, **headers: str) -> Any:
            headers |= {"x-request-id": name}
            return http.stream("POST", "/generate_stream", json={"inputs": prompt}, headers=headers)

        async with ask("ends", "abc") as answer:
            await answer.aread()
        async with ask("is-lost", "abcd") as answer:
            await answer.aread()
        async with ask("is-late", "abcde", **{"x-request-timeout": "3"}) as answer:
            await answer.aread()
        async with ask("is-left", "abcde") as answer:
            heard = b""
            async for chunk in answer.aiter_raw():
                heard += chunk
                if heard.count(b"\n\n") == 2:
                    break
        async with ask("is-cancelled", "abcde") as answer:
            chunks = answer.aiter_raw()
            heard = b""
            while heard.count(b"\n\n") < 2:
                heard += await anext(chunks)
            assert (await http.delete("/v1/requests/is-cancelled")).status_code == 200
            async for _ in chunks:
                pass
    expected = {
        "ends": ("finished", 3, 3),
        "is-lost": ("generation", 4, 2),
        "is-late": ("timeout", 5, 2),
        "is-left": ("client_closed", 5, 2),
        "is-cancelled": ("cancelled", 5, 2),
    }
    for name, (cause, prompt_tokens, generated) in expected.items():
        await until(lambda name=name: line(name) is not None)  # type: ignore[misc]
        logged = line(name)
        assert logged is not None
        told = (logged["event"], logged["cause"], logged["prompt_tokens"], logged["generated_tokens"])
        assert told == ("request", cause, prompt_tokens, generated), name
