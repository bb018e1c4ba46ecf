"""The native routes over HTTP, every answer checked against both contracts."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

from common.wire import Finish, FinishReason, Job, Token, Tokens
from tests.contract.tgi import check_answer
from tests.integration.client.fake_worker import FakeWorker, accept_and_hang, until
from tests.integration.web.serving import WebNode, events, failing_after, saying, spoken, worker

GENERATING = ("/", "/generate", "/generate_stream")


async def post(client: httpx.AsyncClient, path: str, body: Any, **headers: str) -> httpx.Response:
    response = await client.post(path, json=body, headers={name.replace("_", "-"): v for name, v in headers.items()})
    check_answer(response)
    return response


async def test_generate(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("Hé!")) as fake:
        response = await post(client, "/generate", {"inputs": "Say", "parameters": {"details": True, "seed": 5}})
    assert response.status_code == 200
    body = response.json()
    assert body["generated_text"] == "Hé!"
    assert [token["text"] for token in body["details"]["tokens"]] == ["H", "é", "!", "<end>"]
    assert body["details"]["finish_reason"] == "eos_token"
    (job,) = fake.jobs.values()
    assert len(job.prompt_ids) == 3
    assert job.parameters.max_new_tokens == 100
    headers = response.headers
    assert headers["x-compute-characters"] == "3"
    assert headers["x-prompt-tokens"] == "3"
    assert headers["x-generated-tokens"] == "4"
    assert 0 < float(headers["x-compute-time"]) < 30
    total, *parts = (int(headers[f"x-{name}-time"]) for name in ("total", "validation", "queue", "inference"))
    assert all(0 <= part <= max(total, 10) for part in parts)
    assert "x-time-per-token" in headers


async def test_root_answers_an_array_or_a_stream(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("ok")):
        for flag in ({}, {"stream": False}, {"stream": None}):
            assert (await post(client, "/", {"inputs": "x", **flag})).json() == [{"generated_text": "ok"}]
        streamed = await post(client, "/", {"inputs": "x", "stream": True})
    assert [event["token"]["text"] for event in events(streamed.text)] == ["o", "k", "<end>"]


async def test_generate_stream(client: httpx.AsyncClient, redis_url: str) -> None:
    text = "a\u0085\u2028b🤗"
    parameters = {"details": True, "return_full_text": True, "do_sample": True, "seed": 9}
    async with worker(redis_url, saying(text)):
        response = await post(client, "/generate_stream", {"inputs": "P: ", "parameters": parameters})
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["cache-control"] == "no-cache"
    assert "content-length" not in response.headers
    assert not any(separator in response.text for separator in "\u0085\u2028")
    *others, last = events(response.text)
    assert [event["index"] for event in (*others, last)] == list(range(1, 7))
    assert all(event["generated_text"] is None and event["details"] is None for event in others)
    assert last["generated_text"] == "P: " + text
    assert last["details"] == {"finish_reason": "eos_token", "generated_tokens": 6, "seed": 9, "input_length": 3}


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"inputs": ""}, "`inputs`"),
        ({"inputs": "x", "parameters": {"temperature": 0}}, "`temperature`"),
        ({"inputs": "x", "parameters": {"max_new_tokens": 1.5}}, "`parameters.max_new_tokens`"),
        ({"inputs": "x", "parameters": {"max_new_tokens": 999_999}}, "999999"),
        ({"inputs": "x", "parameters": {"grammar": {"type": "regex", "value": "[a"}}}, "`grammar` is not valid"),
        ({"inputs": "x", "parameters": {"grammar": {"type": "json", "value": {"a": 1}}}}, "`properties` field"),
        ({"parameters": {}}, "`inputs`: is required"),
    ],
)
async def test_invalid_requests_are_422_on_streams_too(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], named: str
) -> None:
    response = await post(client, path, body | {"stream": True})
    assert response.status_code == 422
    assert response.json()["error_type"] == "validation"
    assert response.json()["error"].startswith("Input validation error: ")
    assert named in response.json()["error"]


async def test_an_error_is_an_event_for_those_who_accept_nothing_else(client: httpx.AsyncClient) -> None:
    wrong = {"inputs": "", "stream": True}
    for path in ("/", "/generate_stream"):
        response = await post(client, path, wrong, accept="text/event-stream")
        assert response.status_code == 422
        assert response.headers["content-type"] == "text/event-stream"
        assert events(response.text)[0]["error_type"] == "validation"
    both = await post(client, "/generate_stream", wrong, accept="text/event-stream, application/json")
    assert both.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{", {"content-type": "application/json"}, 400),
        (b'{"inputs": NaN}', {"content-type": "application/json; charset=utf-8"}, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {}, 415),
        (b"x" * 2_000_001, {"content-type": "application/json"}, 413),
    ],
)
@pytest.mark.parametrize("path", [*GENERATING, "/tokenize"])
async def test_bodies_that_are_no_request(
    client: httpx.AsyncClient, path: str, content: bytes, headers: dict[str, str], status: int
) -> None:
    response = await client.post(path, content=content, headers=headers)
    check_answer(response)
    assert response.status_code == status


async def test_a_long_body_of_unknown_length_is_413(client: httpx.AsyncClient) -> None:
    async def chunks() -> Any:
        for _ in range(40):
            yield b" " * 100_000

    response = await client.post("/generate", content=chunks(), headers={"content-type": "application/json"})
    check_answer(response)
    assert response.status_code == 413


async def test_json_by_another_name(client: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/vnd.api+json"}
    response = await client.post("/tokenize", content=b'{"inputs": "a"}', headers=headers)
    assert response.status_code == 200


async def test_unknown_paths_and_methods(client: httpx.AsyncClient) -> None:
    for method, path, status in (
        ("GET", "/nope", 404),
        ("GET", "/generate", 405),
        ("POST", "/health", 405),
        ("DELETE", "/", 405),
    ):
        response = await client.request(method, str(client.base_url).rstrip("/") + path)
        check_answer(response)
        assert response.status_code == status
        assert ("allow" in response.headers) is (status == 405)
    assert (await client.get(f"{client.base_url}//generate")).status_code in (404, 405)
    assert (await client.get("/info/")).status_code == 200


async def test_health_needs_a_ready_worker(client: httpx.AsyncClient, redis_url: str) -> None:
    async def status(path: str) -> int:
        response = await client.get(path)
        check_answer(response)
        return response.status_code

    async def becomes(expected: int) -> None:
        deadline = time.monotonic() + 30
        while await status("/health") != expected:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    await becomes(503)
    async with worker(redis_url, saying("x")):
        await becomes(200)
        assert [await status(path) for path in ("/", "/ping", "/health/")] == [200, 200, 200]
        head = await client.head("/health")
        assert (head.status_code, head.content) == (200, b"")


async def test_info(client: httpx.AsyncClient) -> None:
    response = await client.get("/info")
    check_answer(response)
    info = response.json()
    assert (info["max_input_tokens"], info["max_input_length"], info["max_total_tokens"]) == (255, 255, 256)
    assert info["max_concurrent_requests"] == 8
    assert info["payload_limit"] == 2_000_000
    assert info["model_id"] == "scripted"


async def test_tokenize(client: httpx.AsyncClient) -> None:
    tokens = (await post(client, "/tokenize", {"inputs": "aé"})).json()
    assert [(token["text"], token["start"], token["stop"]) for token in tokens] == [
        ("a", 0, 1),
        ("é", 1, 3),
        ("é", 1, 3),
    ]
    assert (await post(client, "/tokenize", {"inputs": ""})).json() == []


@pytest.mark.parametrize("path", GENERATING)
async def test_a_failure_before_the_first_token_has_a_status(
    client: httpx.AsyncClient, redis_url: str, path: str
) -> None:
    async with worker(redis_url, failing_after(0)):
        response = await post(client, path, {"inputs": "x", "stream": True})
    assert response.status_code == 424
    assert response.json()["error_type"] == "generation"


async def test_a_failure_after_the_first_token_is_the_last_event(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, failing_after(3)):
        whole = await post(client, "/generate", {"inputs": "x"})
        response = await post(client, "/generate_stream", {"inputs": "x"})
    assert whole.status_code == 424
    assert response.status_code == 200
    *tokens, error = events(response.text)
    assert len(tokens) == 3
    assert error == {
        "error": "Request failed during generation: broken on purpose",
        "error_type": "generation",
    }
    assert all(event["generated_text"] is None for event in tokens)


async def test_comments_in_silence(client: httpx.AsyncClient, redis_url: str) -> None:
    go_on = asyncio.Event()

    async def pausing(fake: FakeWorker, job: Job) -> None:
        await fake.accept(job)
        await go_on.wait()
        await fake.emit(job, Tokens(0, [Token(65, "A", -1.0, False)], Finish("length", 1, 0.01)))

    async with (
        worker(redis_url, pausing),
        client.stream("POST", "/generate_stream", json={"inputs": "x"}) as response,
    ):
        assert response.status_code == 200
        lines = response.aiter_lines()
        silent = [await anext(lines) for _ in range(4)]
        go_on.set()
        rest = [line async for line in lines]
    assert silent == [":"] * 4
    (event,) = [json.loads(line.removeprefix("data: ")) for line in rest if line.startswith("data: ")]
    assert event["generated_text"] == "A"


async def test_tokens_that_arrive_together_are_sent_together(client: httpx.AsyncClient, redis_url: str) -> None:
    async def burst(fake: FakeWorker, job: Job) -> None:
        await fake.accept(job)
        tokens = spoken("abcdef")
        await fake.emit(job, Tokens(0, tokens, Finish("eos_token", len(tokens), 0.01)))

    async with (
        worker(redis_url, burst),
        client.stream("POST", "/generate_stream", json={"inputs": "x"}) as response,
    ):
        chunks = [chunk async for chunk in response.aiter_raw()]
    assert [event["index"] for event in events(b"".join(chunks).decode())] == list(range(1, 8))
    # Beside comments, when it took longer than a silence may last.
    assert len([chunk for chunk in chunks if b"data:" in chunk]) == 1


async def test_too_many_requests_are_refused_at_once(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, accept_and_hang) as fake:
        waiting = [asyncio.create_task(client.post("/generate", json={"inputs": "x"})) for _ in range(8)]
        await until(lambda: fake.running == 8)
        for path in GENERATING:
            response = await post(client, path, {"inputs": "x", "stream": True})
            assert response.status_code == 429
            assert response.json() == {"error": "Model is overloaded", "error_type": "overloaded"}
            assert 1 <= int(response.headers["retry-after"]) <= 60
        # Rules of combination come first, all others need a permit.
        refused = await post(client, "/generate_stream", {"inputs": "x", "parameters": {"best_of": 2}})
        assert refused.status_code == 422
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await until(lambda: fake.running == 0)


async def test_best_of_takes_a_permit_for_each_sequence_and_answers_with_the_best(
    client: httpx.AsyncClient, redis_url: str
) -> None:
    async def children(fake: FakeWorker, job: Job) -> None:
        assert job.parameters.children == 2
        await fake.accept(job)
        ends: list[tuple[int, float, FinishReason]] = [(1, -1.0, "eos_token"), (0, -2.0, "length")]
        for child, logprob, end in ends:
            tokens = [Token(65 + child, "AB"[child], logprob, False)] * (2 - child)
            await fake.emit(job, Tokens(0, tokens, Finish(end, 2 - child, 0.01), child, child))

    asked = {"inputs": "x", "parameters": {"best_of": 2, "do_sample": True, "details": True, "max_new_tokens": 2}}
    async with worker(redis_url, children):
        response = await client.post("/generate", json=asked)
    check_answer(response)
    answer = response.json()
    assert (response.status_code, answer["generated_text"]) == (200, "B")
    (other,) = answer["details"]["best_of_sequences"]
    assert (other["generated_text"], other["finish_reason"]) == ("AA", "length")
    assert response.headers["x-generated-tokens"] == "1"
    assert {answer["details"]["seed"], other["seed"]} != {None}
    assert answer["details"]["seed"] != other["seed"]

    async with worker(redis_url, accept_and_hang) as fake:
        waiting = [asyncio.create_task(client.post("/generate", json=asked)) for _ in range(4)]
        await until(lambda: fake.running == 4)
        assert (await client.post("/generate", json={"inputs": "x"})).status_code == 429
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await until(lambda: fake.running == 0)


async def test_request_ids(client: httpx.AsyncClient) -> None:
    async def echoed(given: str) -> str:
        return str((await client.get("/info", headers={"x-request-id": given})).headers["x-request-id"])

    assert await echoed("abc.DEF-1_2") == "abc.DEF-1_2"
    for bad in ("a b", "x" * 129, "a;b", ""):
        new = await echoed(bad)
        assert new != bad
        assert len(new) == 32


async def test_prompts_answers_and_keys_are_not_logged(
    client: httpx.AsyncClient, redis_url: str, shared_node: WebNode
) -> None:
    async with worker(redis_url, saying("answermarker")):
        headers = {"x-request-id": "logged-once", "authorization": "Bearer keymarker"}
        await client.post("/generate", json={"inputs": "promptmarker"}, headers=headers)
        await client.post("/generate", json={"inputs": ["promptmarker"]})
    text = shared_node.log_text()
    for marker in ("promptmarker", "answermarker", "keymarker"):
        assert marker not in text
    (line,) = [line for line in shared_node.log_lines() if line.get("request_id") == "logged-once"]
    assert (line["cause"], line["route"], line["prompt_tokens"], line["generated_tokens"]) == (
        "finished",
        "/generate",
        12,
        13,
    )
