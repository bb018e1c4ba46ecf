"""Dead workers' jobs go back in order, once, and not for ever."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import redis.asyncio

from common import reaper
from common.celery_message import celery_message
from common.reaper import hand_back, reap, reap_async
from common.settings import Settings
from common.wire import Failed
from tests.integration.workers.support import Submitter, until

SETTINGS = Settings.of(max_attempts=3, worker_dead_after=10.0)


@pytest.fixture(autouse=True)
def _busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that the machine held up is a look."""
    monkeypatch.setattr(reaper, "PUNCTUAL_SECONDS", 60.0)


def die(submitter: Submitter, pulled: Sequence[str], *, worker: str = "w") -> None:
    """Leave Redis as a worker leaves it that was killed 11 s after its last heartbeat."""
    client, keys, queue = submitter.client, submitter.keys, submitter.queue()
    for position, request in enumerate(pulled):
        message = celery_message(submitter.job(request), queue)
        tag = json.loads(message)["properties"]["delivery_tag"]
        client.hset(keys.unacked(worker), tag, b"[" + message + b',"","' + queue.encode() + b'"]')
        client.zadd(keys.unacked_index(worker), {tag: 1000 + position / 1e6})
    client.zadd(keys.workers, {worker: client.time()[0] - 11})
    client.set(keys.worker(worker), "{}")


def line(submitter: Submitter) -> list[str]:
    """Requests in the queue, the next one to be taken first."""
    messages = submitter.client.lrange(submitter.queue(), 0, -1)
    return [json.loads(message)["headers"]["id"] for message in reversed(messages)]


def test_jobs_go_back_to_the_head_oldest_first(submitter: Submitter) -> None:
    submitter.submit("later")
    requests = [f"r{number:02}" for number in range(12)]
    die(submitter, requests)
    reaped = reap(submitter.client, SETTINGS, grace=0)
    assert reaped.workers == {"w": 12}
    assert line(submitter) == [*requests, "later"]
    assert reap(submitter.client, SETTINGS, grace=0).workers == {}
    left = {name.decode() for name in submitter.client.scan_iter("*")}
    own = {name for name in left if not name.startswith(submitter.queue())}
    assert own == {submitter.keys.attempts(request) for request in requests}
    assert all(submitter.client.ttl(submitter.keys.attempts(request)) > 0 for request in requests)


def test_the_message_is_returned_as_it_was(submitter: Submitter) -> None:
    die(submitter, ["a"])
    entry = submitter.client.hvals(submitter.keys.unacked("w"))[0]
    reap(submitter.client, SETTINGS, grace=0)
    assert json.loads(submitter.client.lindex(submitter.queue(), 0) or "") == json.loads(entry)[0]


async def test_does_the_same_on_an_event_loop(submitter: Submitter, redis_url: str) -> None:
    die(submitter, ["a", "b"])
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        assert (await reap_async(client, SETTINGS, grace=0)).workers == {"w": 2}
    assert line(submitter) == ["a", "b"]


def test_a_living_worker_keeps_its_jobs(submitter: Submitter) -> None:
    die(submitter, ["a"])
    submitter.client.zadd(submitter.keys.workers, {"w": submitter.client.time()[0] - 5})
    assert reap(submitter.client, SETTINGS, grace=0).workers == {}
    assert submitter.client.hlen(submitter.keys.unacked("w")) == 1


def test_waits_after_a_redis_restart(submitter: Submitter) -> None:
    die(submitter, ["a"])
    assert reap(submitter.client, SETTINGS, grace=10**6).workers == {}
    assert submitter.client.hlen(submitter.keys.unacked("w")) == 1


def test_many_reapers_return_each_job_once(submitter: Submitter, redis_url: str) -> None:
    requests = [f"r{number:03}" for number in range(200)]
    die(submitter, requests)
    gate = threading.Barrier(6)

    def run() -> None:
        with redis.Redis.from_url(redis_url) as client:
            gate.wait()
            reap(client, SETTINGS, grace=0)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert line(submitter) == requests


def test_a_job_that_kills_every_worker_is_given_up_and_its_submitter_told(submitter: Submitter) -> None:
    for loss in range(1, 4):
        die(submitter, ["poison"], worker=f"w{loss}")
        reaped = reap(submitter.client, SETTINGS, grace=0)
        assert reaped.buried == (["poison"] if loss == 3 else [])
        submitter.client.delete(submitter.queue())
    body = submitter.wait("poison").body
    assert isinstance(body, Failed)
    assert (body.error_type, body.retryable) == ("generation", False)
    dead = [json.loads(entry) for entry in submitter.client.lrange(submitter.keys.dead, 0, -1)]
    assert [(entry["id"], entry["losses"], entry["worker"]) for entry in dead] == [("poison", 3, "w3")]
    assert "prompt_ids" not in str(dead)


def test_cancelled_jobs_are_dropped(submitter: Submitter) -> None:
    die(submitter, ["a", "unwanted", "b"])
    submitter.client.set(submitter.keys.cancelled("unwanted"), "1", ex=60)
    reap(submitter.client, SETTINGS, grace=0)
    assert line(submitter) == ["a", "b"]
    assert not submitter.client.exists(submitter.keys.unacked("w"))


def test_older_attempts_are_dropped(submitter: Submitter) -> None:
    die(submitter, ["a", "moved on"])
    submitter.client.set(submitter.keys.attempt("moved on"), "2", ex=60)
    reap(submitter.client, SETTINGS, grace=0)
    assert line(submitter) == ["a"]


def test_works_when_memory_is_full(submitter: Submitter) -> None:
    die(submitter, ["a", "b"])
    submitter.client.config_set("maxmemory", "1")
    try:
        assert reap(submitter.client, SETTINGS, grace=0).workers == {"w": 2}
    finally:
        submitter.client.config_set("maxmemory", "0")
    assert line(submitter) == ["a", "b"]


class TestHandBack:
    def test_everything_in_order_without_counting_an_attempt(self, submitter: Submitter) -> None:
        submitter.submit("later")
        die(submitter, ["a", "b", "c"])
        assert hand_back(submitter.client, submitter.keys, "w") == 3
        assert line(submitter) == ["a", "b", "c", "later"]
        assert not submitter.client.exists(submitter.keys.attempts("a"))

    def test_some(self, submitter: Submitter) -> None:
        die(submitter, ["a", "b", "c", "d"])
        raw: list[Any] = submitter.client.zrange(submitter.keys.unacked_index("w"), 0, -1)
        tags = [tag.decode() for tag in raw]
        assert hand_back(submitter.client, submitter.keys, "w", [tags[1], tags[3], "unknown"]) == 2
        assert line(submitter) == ["b", "d"]
        assert submitter.client.hlen(submitter.keys.unacked("w")) == 2
        assert hand_back(submitter.client, submitter.keys, "w", []) == 0


@pytest.mark.parametrize("size", [10_000, 300_000])
def test_long_prompts_survive(submitter: Submitter, size: int) -> None:
    queue = submitter.queue()
    message = celery_message(submitter.job("long", prompt_ids=[123456] * size), queue)
    submitter.client.hset(submitter.keys.unacked("w"), "tag", b"[" + message + b',"","' + queue.encode() + b'"]')
    submitter.client.zadd(submitter.keys.unacked_index("w"), {"tag": 1})
    assert hand_back(submitter.client, submitter.keys, "w") == 1
    assert submitter.client.lindex(queue, 0) == message
    until(lambda: submitter.waiting() == 1)
