"""Every answer of every native route fits both contracts: each kind of success, each error, as JSON and as an event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ops.embedded_redis import EmbeddedRedis
from ops.local_service import LocalService
from tests.acceptance.native import (
    GENERATING,
    TIMEOUT,
    Occupied,
    another_web_node,
    checked,
    error_of,
    events,
    post,
    script,
    settled,
)

JSON = {"content-type": "application/json"}
EVENTS_ALONE = {"accept": "text/event-stream"}
STREAMING = ({"path": "/", "stream": True}, {"path": "/generate_stream"})
ASKED: list[dict[str, Any]] = [
    {},
    {"details": True},
    {"details": True, "max_new_tokens": 2, "top_n_tokens": 3},
    {"details": True, "do_sample": True, "seed": 2**64 - 1, "temperature": 0.5, "top_k": 5, "top_p": 0.9},
    {"details": True, "return_full_text": True, "stop": ["two"]},
    {"details": True, "typical_p": 0.5, "repetition_penalty": 1.2, "frequency_penalty": -0.5, "truncate": 9},
]


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: "-".join(asked) or "nothing")
@pytest.mark.parametrize("path", GENERATING)
def test_answers(scripted_service: LocalService, path: str, asked: dict[str, Any]) -> None:
    url, prompt = scripted_service.url + path, script("one two three")
    for parameters in (asked, {**asked, "stream": True}):
        response = post(url, prompt, **parameters)
        assert response.status_code == 200


@pytest.mark.parametrize("path", ["/", "/generate"])
def test_prompt_details(scripted_service: LocalService, path: str) -> None:
    response = post(scripted_service.url + path, script("one"), decoder_input_details=True)
    body = response.json()[0] if path == "/" else response.json()
    assert body["details"]["prefill"][0]["logprob"] is None


def test_the_other_routes(scripted_service: LocalService) -> None:
    url = scripted_service.url
    for path in ("/", "/health", "/ping", "/info", "/metrics"):
        assert checked(httpx.get(url + path, timeout=TIMEOUT)).status_code == 200
    assert post(f"{url}/tokenize", "naïve 🤗").status_code == 200


@pytest.mark.parametrize("accept", [{}, EVENTS_ALONE, {"accept": "application/json"}], ids=str)
@pytest.mark.parametrize("path", [*GENERATING, "/tokenize"])
def test_bodies_that_are_no_request(scripted_service: LocalService, path: str, accept: dict[str, str]) -> None:
    bodies: list[tuple[bytes, dict[str, str], int]] = [
        (b"{", JSON, 400),
        (b'{"inputs": Infinity}', JSON, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", JSON, 422),
        (b"[]", JSON, 422),
        (b'{"inputs": 3, "stream": true}', JSON, 422),
        (b'{"inputs": "' + b"x" * 2_000_000 + b'"}', JSON, 413),
    ]
    for content, headers, status in bodies:
        response = checked(
            httpx.post(scripted_service.url + path, content=content, headers=headers | accept, timeout=TIMEOUT)
        )
        assert response.status_code == status
        assert error_of(response)["error_type"] == "validation"


@pytest.mark.parametrize("where", STREAMING, ids=str)
def test_errors_of_streams_before_the_first_token_have_a_status(
    scripted_service: LocalService, where: dict[str, Any]
) -> None:
    url, stream = scripted_service.url + where["path"], {k: v for k, v in where.items() if k == "stream"}
    failing = script("never", raise_at=0)
    cases: list[tuple[str, dict[str, Any], int, str]] = [
        ("x", {"temperature": -1}, 422, "validation"),
        ("", {}, 422, "validation"),
        ("x", {"best_of": 2}, 422, "validation"),
        (failing, {}, 424, "generation"),
    ]
    for prompt, parameters, status, kind in cases:
        told = post(url, prompt, **parameters, **stream)
        assert (told.status_code, told.headers["content-type"]) == (status, "application/json")
        event = post(url, prompt, headers=EVENTS_ALONE, **parameters, **stream)
        assert (event.status_code, event.headers["content-type"]) == (status, "text/event-stream")
        assert error_of(event) == error_of(told)
        assert error_of(told)["error_type"] == kind


@pytest.mark.parametrize("where", STREAMING, ids=str)
@pytest.mark.parametrize("accept", [{}, EVENTS_ALONE], ids=str)
def test_an_error_after_the_first_token_is_the_last_event(
    scripted_service: LocalService, where: dict[str, Any], accept: dict[str, str]
) -> None:
    fields = {key: value for key, value in where.items() if key != "path"}
    prompt = script("a b c d e", raise_at=3)
    response = post(scripted_service.url + where["path"], prompt, headers=accept, details=True, **fields)
    assert response.status_code == 200
    *tokens, last = events(response)
    assert [event["token"]["text"] for event in tokens] == ["a", " b", " c"]
    assert all(event["generated_text"] is None and event["details"] is None for event in tokens)
    assert set(last) == {"error", "error_type"}
    assert last["error_type"] == "generation"
    assert "[DONE]" not in response.text
    whole = post(scripted_service.url + "/generate", prompt)
    assert (whole.status_code, whole.json()) == (424, last)


def test_the_engine_dies_under_a_request(scripted_service: LocalService) -> None:
    """At a node that tries no other engine: each one that is lost makes the next one come later."""
    with another_web_node(scripted_service, {"TGQ_MAX_ATTEMPTS": "1"}) as (url, _):
        for path in GENERATING:
            response = post(url + path, script("a b c", kill_at=0))
            # A stream may have had a comment meanwhile.
            assert response.status_code in ((424, 200) if path == "/generate_stream" else (424,))
            assert error_of(response)["error_type"] == "generation"
        streamed = post(f"{url}/generate_stream", script("a b c", kill_at=2))
        assert [set(event) >= {"error"} for event in events(streamed)] == [False, False, True]
        assert post(f"{url}/generate", script("back again")).json() == {"generated_text": "back again"}


@pytest.fixture(scope="module")
def narrow(scripted_service: LocalService) -> Iterator[str]:
    """A web node that admits one request, and gives up on a silent worker after a second, the second time for good."""
    settings = {
        "MAX_CONCURRENT_REQUESTS": "1",
        "TGQ_STALL_TIMEOUT": "1",
        "TGQ_KEEPALIVE_SECONDS": "0",
        "TGQ_MAX_ATTEMPTS": "2",
    }
    with another_web_node(scripted_service, settings) as (url, _):
        yield url


def test_overloaded(narrow: str) -> None:
    with Occupied(narrow):
        for path in GENERATING:
            for accept in ({}, EVENTS_ALONE):
                response = post(narrow + path, "x", headers=accept, stream=True)
                assert response.status_code == 429
                assert error_of(response) == {"error": "Model is overloaded", "error_type": "overloaded"}
                assert int(response.headers["retry-after"]) >= 1
        assert checked(httpx.get(f"{narrow}/health", timeout=TIMEOUT)).status_code == 200
        assert post(f"{narrow}/tokenize", "x").status_code == 200
    assert post(f"{narrow}/generate", script("in")).json() == {"generated_text": "in"}


def test_a_worker_that_goes_silent(scripted_service: LocalService, narrow: str) -> None:
    for path in GENERATING:
        response = post(narrow + path, script("late", first_ms=60_000))
        assert (response.status_code, error_of(response)["error_type"]) == (424, "generation")
        settled(scripted_service)
    streamed = events(post(f"{narrow}/generate_stream", script("a b", step_ms=60_000)))
    # Each attempt begins with a token at once.
    assert streamed[-1]["generated_text"] == "a b"
    settled(scripted_service)


def test_no_worker_and_no_redis(scripted_service: LocalService, tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as redis:
        settings = {"REDIS_URL": redis.url, "TGQ_QUEUE_TIMEOUT": "0.5"}
        with another_web_node(scripted_service, settings) as (url, _):
            for path in ("/", "/health", "/ping"):
                unhealthy = checked(httpx.get(url + path, timeout=TIMEOUT))
                assert (unhealthy.status_code, error_of(unhealthy)["error_type"]) == (503, "healthcheck")
            for path in GENERATING:
                late = post(url + path, "x", headers=EVENTS_ALONE, stream=True)
                assert (late.status_code, error_of(late)["error_type"]) == (504, "timeout")

            redis.kill()
            for path in GENERATING:
                away = post(url + path, "x", stream=True)
                assert (away.status_code, error_of(away)["error_type"]) == (503, "unavailable")
                assert int(away.headers["retry-after"]) >= 1
            assert checked(httpx.get(f"{url}/health", timeout=TIMEOUT)).status_code == 503
            for path in ("/info", "/metrics"):
                assert checked(httpx.get(url + path, timeout=TIMEOUT)).status_code == 200
            assert post(f"{url}/tokenize", "x").status_code == 200


def test_paths_and_methods(scripted_service: LocalService) -> None:
    url = scripted_service.url
    for path in (*GENERATING, "/tokenize", "/health", "/ping", "/info", "/metrics", "/nope"):
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
            if (method, path) == ("GET", "/metrics"):
                continue
            body = json.dumps({"inputs": script("x")})
            response = checked(httpx.request(method, url + path, content=body, headers=JSON, timeout=TIMEOUT))
            assert response.status_code in (200, 404, 405), (method, path)
            assert (response.status_code == 404) is (path == "/nope")
            assert ("allow" in response.headers) is (response.status_code == 405)
