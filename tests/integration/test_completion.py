"""Names that the shell offers at a TAB, from a Redis that is there or not."""

from __future__ import annotations

import socket
import time

import pytest
import redis
import typer
from typer.main import get_command

from common.keys import Keys
from common.wire import WorkerRecord, encode_json
from ops import completion
from ops.cli import app


def context(**params: str) -> typer.Context:
    context = typer.Context(get_command(app))
    context.params.update(params)
    return context


def test_live_workers_are_offered(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url, socket_timeout=5) as client:
        for name in ("host-1-aa", "host-2-bb"):
            record = WorkerRecord(id=name, pid=1, engine_pid=None, host="h", model="m", state="ready", started_at=0)
            client.zadd(Keys().workers, {name: time.time()})
            client.set(Keys().worker(name), encode_json(record), ex=30)
    assert completion.workers(context(redis_url=redis_url), "") == ["host-1-aa", "host-2-bb"]
    assert completion.workers(context(redis_url=redis_url), "host-2") == ["host-2-bb"]


def test_a_redis_that_is_away_offers_nothing() -> None:
    assert completion.workers(context(redis_url="redis://127.0.0.1:1"), "") == []
    assert completion.workers(context(redis_url="nonsense"), "") == []


def test_a_redis_that_does_not_answer_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "SECONDS", 0.2)
    monkeypatch.setenv("TGQ_REDIS_TIMEOUT", "60")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        started = time.monotonic()
        assert completion.workers(context(redis_url=f"redis://127.0.0.1:{port}"), "") == []
        # The client itself would wait for a minute.
        assert time.monotonic() - started < 15
