"""Cases from other servers' bug reports, replayed: metrics, and what must be found in no log."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import httpx
import redis

from common.celery_app import make_app
from common.keys import Keys
from common.settings import Settings
from ops.embedded_redis import EmbeddedRedis
from ops.local_service import LocalService
from ops.process_figures import children
from tests.acceptance.native import (
    IN_FLIGHT,
    TIMEOUT,
    Series,
    another_web_node,
    checked,
    events,
    gauges,
    more_web_nodes,
    post,
    refused,
    samples,
    script,
    settled,
    until,
    value,
    web_series,
)
from tests.acceptance.observation import sends_traces


def test_i02_names_clients_make_up(scripted_service: LocalService) -> None:
    """A thousand names of models, keys, ids and paths that clients make up add no series."""
    url = scripted_service.url
    refused(post(f"{url}/generate", "x", adapter_id="first"), "adapter_id")
    before = web_series(url)
    with httpx.Client(base_url=url, timeout=TIMEOUT) as client:
        for n in range(500):
            body = {"inputs": "x", "model": f"junk-{n}", "parameters": {"adapter_id": f"junk-{n}", f"junk_{n}": n}}
            headers = {"x-request-id": f"junk-{n}", "user-agent": f"junk-{n}", "authorization": f"Bearer junk-{n}"}
            assert checked(client.post(f"/generate?junk={n}", json=body, headers=headers)).status_code == 422
            assert checked(client.get(f"/junk-{n}")).status_code == 404
    assert web_series(url) == before


def test_without_an_endpoint_no_process_can_send_traces(scripted_service: LocalService) -> None:
    parts = [part.pid for part in (*scripted_service.web, *scripted_service.workers)]
    processes = [*parts, *(child for pid in parts for child in children(pid))]
    assert len(processes) >= 4, "a web node has a process for each web process, a worker one for its engine"
    assert not [pid for pid in processes if sends_traces(pid)]


async def test_i03_counters_of_several_processes_and_nodes(scripted_service: LocalService) -> None:
    """Counters of a node with two processes never go down and sum to what was asked; so do two nodes' counters."""
    waves, wave = 5, 20
    with more_web_nodes(scripted_service, {"WEB_CONCURRENCY": "2"}, {}) as ((first, _), (second, _)):
        before = [samples(url) for url in (first, second)]
        scrapes: list[list[Mapping[Series, float]]] = [[], []]

        async def scrape() -> None:
            for seen, url in zip(scrapes, (first, second), strict=True):
                seen.append(await asyncio.to_thread(samples, url))

        async def ask(number: int) -> None:
            # A new connection each, so that all processes get some.
            async with httpx.AsyncClient(timeout=TIMEOUT) as own:
                url = (first, first, first, second)[number % 4]
                body = {"inputs": script("a b c", step_ms=10), "parameters": {"max_new_tokens": 4}}
                (await own.post(f"{url}/generate", json=body)).raise_for_status()

        for _ in range(waves):
            await asyncio.gather(scrape(), *map(ask, range(wave)))

        def served(url: str, start: Mapping[Series, float], name: str) -> float:
            return value(samples(url), name) - value(start, name)

        for name in ("tgi_request_count", "tgi_request_success", "tgi_request_generated_tokens_count"):
            counted = [served(url, start, name) for url, start in zip((first, second), before, strict=True)]
            assert counted == [0.75 * waves * wave, 0.25 * waves * wave], name
        assert served(first, before[0], "tgi_request_generated_tokens_sum") == 0.75 * waves * wave * 4
        for start, seen in zip(before, scrapes, strict=True):
            check_monotone([start, *seen], gauges(first))
        until(lambda: in_flight(first) == in_flight(second) == 0, "the end of all requests")
        for url in (first, second):
            assert {in_flight(url) for _ in range(20)} == {0}
        check_latency(first)


def in_flight(url: str) -> float:
    return value(samples(url), IN_FLIGHT)


def check_monotone(scrapes: list[Mapping[Series, float]], falling: set[str]) -> None:
    for earlier, later in pairwise(scrapes):
        for key, number in earlier.items():
            if key[0] not in falling:
                assert later[key] >= number, key


def check_latency(url: str) -> None:
    """A scrape is quick enough for any scraper's patience."""
    fastest = 60.0
    for _ in range(5):
        begin = time.monotonic()
        httpx.get(f"{url}/metrics", timeout=TIMEOUT)
        fastest = min(fastest, time.monotonic() - begin)
    assert fastest < 1  # of the ten seconds that Prometheus waits


TGI_NAMES = {
    "tgi_request_count",
    "tgi_request_success",
    "tgi_request_failure",
    "tgi_request_duration_bucket",
    "tgi_request_validation_duration_bucket",
    "tgi_request_queue_duration_bucket",
    "tgi_request_inference_duration_bucket",
    "tgi_request_mean_time_per_token_duration_bucket",
    "tgi_request_generated_tokens_bucket",
    "tgi_request_input_length_bucket",
    "tgi_request_max_new_tokens_bucket",
    "tgi_batch_inference_count",
    "tgi_batch_inference_success",
    "tgi_batch_inference_duration_bucket",
    "tgi_batch_forward_duration_bucket",
    "tgi_batch_decode_duration_bucket",
    "tgi_batch_next_size_bucket",
    "tgi_batch_current_size",
    "tgi_batch_current_max_tokens",
    "tgi_batch_max_total_tokens",
    "tgi_queue_size",
}
OUR_NAMES = {
    "tgq_time_to_first_token_seconds_bucket",
    "tgq_inter_token_seconds_bucket",
    "tgq_hop_seconds_bucket",
    "tgq_requests_in_flight",
    "tgq_streams",
    "tgq_tasks",
    "tgq_workers",
    "tgq_rejected_total",
    "tgq_cancelled_total",
}


def test_i05_figures_people_look_for(scripted_service: LocalService) -> None:
    """TGI's names are there without a suffix, and ours: time to first token, between tokens, in each hop, losses."""
    url = scripted_service.url
    settled(scripted_service)
    before = samples(url)
    for _ in range(10):
        assert len(events(post(f"{url}/generate_stream", script("one two three", step_ms=5)))) == 4
    refused(post(f"{url}/generate_stream", ""), "inputs")
    assert post(f"{url}/generate", script("x", raise_at=0)).status_code == 424
    with httpx.stream(
        "POST", f"{url}/generate_stream", json={"inputs": script("x " * 99, step_ms=200)}, timeout=TIMEOUT
    ) as leaving:
        next(leaving.iter_raw())
    cancelled = ("tgq_cancelled_total", (("phase", "decode"),))
    until(lambda: samples(url).get(cancelled, 0) == before.get(cancelled, 0) + 1, "the cancelled request")
    settled(scripted_service)
    # The engines' figures come with their workers' heartbeats.
    until(lambda: {name for name, _ in samples(url)} >= TGI_NAMES | OUR_NAMES, "all names")
    after = samples(url)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert grown("tgi_request_success") == 10
    assert grown("tgi_request_count") == 13
    assert grown("tgi_request_failure", err="validation") == 1
    assert grown("tgi_request_failure", err="generation") == 1
    assert grown("tgi_request_failure", err="dropped") == 1
    assert grown("tgq_rejected_total", reason="validation") == 1
    assert grown("tgi_request_generated_tokens_sum") == 40
    assert grown("tgq_time_to_first_token_seconds_count") == 11
    assert grown("tgq_inter_token_seconds_count") >= 10
    assert value(after, "tgq_workers", state="ready") == 1
    assert not any(name.startswith("tgi_") and name.endswith("_total") for name, _ in after)
    assert not any("model_name" in dict(labels) for _, labels in after)


PROMPT_MARK, ANSWER_MARK, STOP_MARK = "quokkaprompt", "wombatanswer", "numbatstop"
OWNED = re.compile(r"_kombu\.binding.*|tgq:(workers|admission|admission_leases|queue:.*|dead)")
"""Names without an expiry that have an owner; see `common/keys.py`. The queues must be empty."""


def test_i06_prompts_and_answers_stay_private(scripted_service: LocalService) -> None:
    """Neither prompt nor answer is found in any log, Redis key, metric or Celery representation; keys expire."""
    service, url = scripted_service, scripted_service.url
    marked = script(f" {ANSWER_MARK}", repeat=3) + PROMPT_MARK
    answer = post(f"{url}/generate", marked, details=True, stop=[STOP_MARK])
    assert ANSWER_MARK in answer.text
    post(f"{url}/generate_stream", script(f" {ANSWER_MARK}", raise_at=2) + PROMPT_MARK)
    post(f"{url}/generate_stream", f"<<script {{{PROMPT_MARK}}}>>")
    post(f"{url}/generate", [PROMPT_MARK])
    post(f"{url}/generate", PROMPT_MARK, stop=STOP_MARK, temperature=PROMPT_MARK)
    post(f"{url}/tokenize", PROMPT_MARK)
    httpx.post(f"{url}/generate", content=f'{{"inputs": "{PROMPT_MARK}', headers={"content-type": "application/json"})
    with httpx.stream("POST", f"{url}/generate_stream", json={"inputs": marked}, timeout=TIMEOUT) as leaving:
        next(leaving.iter_raw())
    settled(service)

    marks = (PROMPT_MARK, ANSWER_MARK, STOP_MARK)
    for part in (*service.web, *service.workers):
        text = part.tail(10**9)
        assert text
        assert not [mark for mark in marks if mark in text], part.name
    assert not [mark for mark in marks if mark in httpx.get(f"{url}/metrics").text]
    check_redis(service.redis_url, marks)


def check_redis(url: str, marks: tuple[str, ...]) -> None:
    with redis.Redis.from_url(url, decode_responses=True, socket_timeout=5) as client:
        for name in client.scan_iter("*"):
            assert client.ttl(name) != -1 or OWNED.fullmatch(name), name
            assert not re.fullmatch(r"tgq:queue:.*(?<!:drained)", name), "the queue is empty"
            kind = client.type(name)
            stored = {
                "string": lambda name=name: client.get(name),
                "list": lambda name=name: client.lrange(name, 0, -1),
                "hash": lambda name=name: client.hgetall(name),
                "set": lambda name=name: client.smembers(name),
                "zset": lambda name=name: client.zrange(name, 0, -1),
            }[kind]()
            assert not [mark for mark in marks if mark in str(stored)], name


def test_i06_a_queued_message_shows_no_prompt(scripted_service: LocalService, tmp_path: Path) -> None:
    """What a message in the queue shows to Celery's tools, its headers, has nothing of its arguments."""
    with EmbeddedRedis(tmp_path) as server:
        settings = {"REDIS_URL": server.url, "TGQ_KEEPALIVE_SECONDS": "0.05"}
        body = {"inputs": script(f" {ANSWER_MARK}") + PROMPT_MARK}
        with (
            another_web_node(scripted_service, settings) as (url, _),
            httpx.stream("POST", f"{url}/generate_stream", json=body, timeout=TIMEOUT) as waiting,
            redis.Redis.from_url(server.url, socket_timeout=5) as client,
        ):
            chunks = waiting.iter_raw()  # Dropped, it would close the connection.
            assert next(chunks) == b":\n"
            (message,) = client.lrange(Keys().queue("scripted", "interactive"), 0, -1)
    envelope = json.loads(message)
    headers = envelope["headers"]
    assert headers["task"] == "tgq.generate"
    assert (headers["argsrepr"], headers["kwargsrepr"]) == ("", "")
    ids = json.loads(envelope["body"])[0][0]["prompt_ids"]
    assert str(ids)[1:-1].replace(" ", "") not in json.dumps({**envelope, "body": None}).replace(" ", "")


def test_i06_an_inspected_worker_tells_no_prompt(scripted_service: LocalService) -> None:
    """What Celery's own tools are told of a worker and the task it runs has neither prompt nor answer."""
    service = scripted_service
    prompt = script(f" {ANSWER_MARK}", repeat=200, step_ms=100) + PROMPT_MARK
    with (
        httpx.stream("POST", f"{service.url}/generate_stream", json={"inputs": prompt}, timeout=TIMEOUT) as running,
        make_app(Settings.of(model_id="scripted", redis_url=service.redis_url)) as app,
    ):
        chunks = running.iter_raw()  # Dropped, it would close the connection.
        assert b"data: " in next(chunks)
        asked = app.control.inspect(timeout=2)
        told = str([asked.active(), asked.reserved()])
        assert b"data: " in next(chunks)
    assert PROMPT_MARK not in told
    assert ANSWER_MARK not in told
    settled(service)
