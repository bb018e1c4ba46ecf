"""`tgq worker-health`, as the probes of containers ask it; and a worker that does not hear operators yet."""

from __future__ import annotations

import socket

import pytest
import redis

from common.keys import Keys
from common.wire import WorkerRecord, WorkerState, encode_json
from ops.commands.fleet import drain
from ops.commands.worker_health import run
from ops.configuration import Configuration

ALIVE, DEAD = 0, 1


def configuration(redis_url: str) -> Configuration:
    return Configuration.load({"redis_url": redis_url})


def beat(redis_url: str, state: WorkerState, host: str) -> None:
    keys = Keys("tgq")
    record = WorkerRecord(id="w", pid=1, engine_pid=None, host=host, model="m", state=state, started_at=0)
    with redis.Redis.from_url(redis_url, socket_timeout=5) as client:
        seconds, microseconds = client.time()
        client.zadd(keys.workers, {"w": seconds + microseconds / 1e6})
        client.set(keys.worker("w"), encode_json(record))


@pytest.mark.parametrize(
    ("state", "loaded"), [("starting", DEAD), ("ready", ALIVE), ("restarting", ALIVE), ("draining", ALIVE)]
)
def test_a_worker_that_beats_is_alive_and_loaded_once_it_was_ready(
    redis_url: str, state: WorkerState, loaded: int
) -> None:
    beat(redis_url, state, socket.gethostname())
    assert run(configuration(redis_url), loaded=False) == ALIVE
    assert run(configuration(redis_url), loaded=True) == loaded


def test_other_hosts_workers_do_not_count(redis_url: str) -> None:
    beat(redis_url, "ready", "elsewhere")
    assert run(configuration(redis_url), loaded=False) == DEAD


def test_a_worker_that_does_not_hear_yet_is_not_said_to_drain(
    redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    beat(redis_url, "starting", "here")
    assert drain(configuration(redis_url), ["w"], wait=None) == 1
    told = capsys.readouterr()
    assert not told.out
    assert "w does not hear: it is starting" in told.err


def test_a_redis_that_is_away_kills_no_worker() -> None:
    away = configuration("redis://127.0.0.1:1/0")
    assert run(away, loaded=False) == ALIVE
    assert run(away, loaded=True) == DEAD
