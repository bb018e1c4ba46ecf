"""What settings change: the API key, CORS, several processes, and Redis going away."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from ops.embedded_redis import EmbeddedRedis
from tests.contract.tgi import check_answer
from tests.integration.web.serving import eventually, saying, web_node, worker


@pytest.mark.parametrize("given", [None, "wrong", "Bearer wrong", "Basic c2VjcmV0", "Bearer secret2", "Bearer"])
async def test_the_key_is_wanted_where_tokens_are_made(guarded: httpx.AsyncClient, given: str | None) -> None:
    headers = {} if given is None else {"authorization": given}
    for path in ("/", "/generate", "/generate_stream", "/tokenize"):
        response = await guarded.post(path, json={"inputs": "x"}, headers=headers)
        check_answer(response)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
    for path in ("/health", "/ping", "/"):
        assert (await guarded.get(path, headers=headers)).status_code in (200, 503)
    for path in ("/info", "/metrics"):
        assert (await guarded.get(path, headers=headers)).status_code == 200


async def test_the_right_key_opens(guarded: httpx.AsyncClient) -> None:
    for scheme in ("Bearer", "bearer"):
        headers = {"authorization": f"{scheme} secret"}
        assert (await guarded.post("/tokenize", json={"inputs": "x"}, headers=headers)).status_code == 200


async def test_only_listed_origins_may_call(guarded: httpx.AsyncClient) -> None:
    def preflight(origin: str) -> dict[str, str]:
        return {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type,last-event-id",
        }

    allowed = await guarded.options("/generate_stream", headers=preflight("https://a.example"))
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    named = {name.strip() for name in allowed.headers["access-control-allow-headers"].split(",")}
    assert {"authorization", "content-type", "last-event-id", "x-request-id"} <= named
    assert "POST" in allowed.headers["access-control-allow-methods"]
    assert "origin" in allowed.headers["vary"]
    refused = await guarded.options("/generate_stream", headers=preflight("https://evil.example"))
    assert "access-control-allow-origin" not in refused.headers
    error = await guarded.post("/generate", json={}, headers={"origin": "https://a.example"})
    assert error.status_code == 401
    assert error.headers["access-control-allow-origin"] == "https://a.example"


async def test_any_origin_by_default_on_answers_errors_and_streams(client: httpx.AsyncClient, redis_url: str) -> None:
    headers = {"origin": "https://any.example"}
    async with worker(redis_url, saying("x")):
        answers = [
            await client.post("/generate", json={"inputs": "x"}, headers=headers),
            await client.post("/generate_stream", json={"inputs": "x"}, headers=headers),
            await client.post("/generate", json={"inputs": ""}, headers=headers),
            await client.get("/nope", headers=headers),
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 422, 404]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


async def test_metrics_of_several_processes_add_up(node_folder: Path, redis_url: str) -> None:
    def value(text: str, name: str) -> float:
        lines = [line for line in text.splitlines() if line.rpartition(" ")[0] == name]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    with web_node(node_folder / "several", redis_url, web_concurrency=3) as node:
        async with worker(redis_url, saying("abc")):
            for _ in range(30):
                # A new connection each: the kernel spreads them over the processes.
                async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
                    assert (await http.post("/generate", json={"inputs": "x"})).status_code == 200

        async def over() -> bool:
            async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
                return value((await http.get("/metrics")).text, "tgq_requests_in_flight") == 0

        await eventually(over)  # the process that answered may still be about to count the end
        seen = []
        for _ in range(10):
            async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
                text = (await http.get("/metrics")).text
            seen.append(value(text, "tgi_request_count"))
            assert value(text, "tgi_request_success") == 30
            assert value(text, "tgi_request_generated_tokens_count") == 30
            assert value(text, "tgi_request_generated_tokens_sum") == 120
            assert value(text, "tgq_requests_in_flight") == 0
            assert "# TYPE tgi_request_count counter" in text
            assert "tgi_request_count_total" not in text
            assert 'tgi_request_duration_bucket{le="+Inf"} 30' in text
    assert seen == [30] * 10


async def test_redis_away_is_503_in_time_and_nothing_needs_a_restart(node_folder: Path, tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "redis") as server, web_node(node_folder / "redis", server.url) as node:
        async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:

            async def unavailable() -> None:
                for path in ("/generate", "/generate_stream", "/"):
                    started = time.monotonic()
                    response = await http.post(path, json={"inputs": "x", "stream": True})
                    assert time.monotonic() - started < 10  # a client of Redis by default waits 25 s
                    check_answer(response)
                    assert response.status_code == 503
                    assert response.json()["error_type"] == "unavailable"
                    assert "retry-after" in response.headers
                started = time.monotonic()
                health = await http.get("/health")
                assert time.monotonic() - started < 10  # a client of Redis by default waits 25 s
                check_answer(health)
                assert health.status_code == 503
                assert (await http.get("/info")).status_code == 200
                metrics = await http.get("/metrics")
                assert metrics.status_code == 200
                assert "tgi_request_count" in metrics.text

            async def served() -> None:
                deadline = time.monotonic() + 60
                async with worker(server.url, saying("back")):
                    while (response := await http.post("/generate", json={"inputs": "x"})).status_code != 200:
                        assert time.monotonic() < deadline, response.text
                    assert response.json() == {"generated_text": "back"}

            await served()
            server.freeze()
            await unavailable()
            server.thaw()
            await served()
            server.kill()
            await unavailable()
            server.start()
            await served()
            assert node.process.poll() is None
