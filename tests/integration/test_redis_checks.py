"""What is read of real servers, and that nothing starts on one that would lose requests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from common.redis_checks import RedisUnfit, check_redis
from common.redis_clients import sync_redis
from common.settings import Settings
from ops.embedded_redis import EmbeddedRedis
from ops.ports import free_port


@contextmanager
def server_with(directory: Path, **options: str) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(directory, options={name.replace("_", "-"): value for name, value in options.items()}) as server:
        yield server


def advice_for(server: EmbeddedRedis, *, durable: bool = False, user: str = "") -> list[str]:
    url = server.url.replace("//", f"//{user}@") if user else server.url
    with sync_redis(Settings.of(redis_url=url)) as client:
        return check_redis(client, durable=durable)


def test_our_own_server_is_fit(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "a") as server:
        assert advice_for(server) == []
        (advice,) = advice_for(server, durable=True)
        assert "appendonly" in advice
    with EmbeddedRedis(tmp_path / "b", append_only=True) as server:
        assert advice_for(server, durable=True) == []


def test_reads_buffers_and_roles(tmp_path: Path) -> None:
    limits = {"client_output_buffer_limit": "pubsub 1mb 1mb 60", "replicaof": "127.0.0.1 1"}
    with server_with(tmp_path, **limits) as server:
        replica, buffer = advice_for(server)
        assert "replica" in replica
        assert str(2**20) in buffer


def test_an_account_that_may_not_look_around_is_no_obstacle(tmp_path: Path) -> None:
    with server_with(tmp_path, user="narrow on >pw ~* &* +@all -config -info") as server:
        (advice,) = advice_for(server, user="narrow:pw")
        assert "cannot be read" in advice


def test_a_server_that_is_not_there_is_an_error_in_time(tmp_path: Path) -> None:
    with (
        sync_redis(Settings.of(redis_url=f"redis://127.0.0.1:{free_port('127.0.0.1')}")) as client,
        pytest.raises(redis.ConnectionError),
    ):
        check_redis(client)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"}, "noeviction"),
        ({"cluster_enabled": "yes"}, "cluster mode"),
    ],
    ids=["evicting", "cluster"],
)
def test_nothing_starts_on_a_server_that_loses_requests(tmp_path: Path, options: dict[str, str], reason: str) -> None:
    with server_with(tmp_path, **options) as server:
        with sync_redis(Settings.of(redis_url=server.url)) as client, pytest.raises(RedisUnfit, match=reason):
            check_redis(client)
        port = str(free_port("127.0.0.1"))
        environment = os.environ | {
            "MODEL_ID": "scripted",
            "REDIS_URL": server.url,
            "PORT": port,
            "HOSTNAME": "127.0.0.1",
        }
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "ops.cli", command],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for command in ("worker", "web", "serve")
        ]
        try:
            for process in started:
                output, _ = process.communicate(timeout=60)
                assert process.returncode == 1, output
                assert reason in output
        finally:
            for process in started:
                process.kill()
                process.wait()
