"""The embedded Redis starts, stops, freezes, comes back on its port, and dies with its parent."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ops import embedded_redis
from ops.embedded_redis import EmbeddedRedis, RedisUnavailable, server_program
from ops.ports import free_port


def client_of(server: EmbeddedRedis, timeout: float = 10.0) -> redis.Redis:
    return redis.Redis.from_url(
        server.url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0)
    )


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path / "redis") as started:
        yield started


def test_is_configured_as_a_broker_must_be(server: EmbeddedRedis) -> None:
    with client_of(server) as client:
        config = client.config_get("maxmemory-policy", "save", "appendonly", "bind")
        assert config["maxmemory-policy"] == "noeviction"
        assert config["save"] == ""
        assert config["appendonly"] == "no"
        assert config["bind"] == "127.0.0.1"


def test_comes_back_on_the_same_port_after_a_kill(server: EmbeddedRedis) -> None:
    url, pid = server.url, server.pid
    server.kill()
    assert not server.running
    with client_of(server) as client:
        with pytest.raises(redis.ConnectionError):
            client.ping()
        server.start()
        assert server.url == url
        assert server.pid != pid
        assert client.ping()


def test_starting_a_running_server_changes_nothing(server: EmbeddedRedis) -> None:
    pid = server.pid
    server.start()
    assert server.pid == pid


def test_frozen_server_answers_again_when_thawed(server: EmbeddedRedis) -> None:
    with client_of(server) as patient:
        patient.set("a", "1")
        server.freeze()
        with client_of(server, timeout=0.2) as client, pytest.raises(redis.TimeoutError):
            client.get("a")
        server.thaw()
        assert patient.get("a") == b"1"


def test_stop_ends_a_frozen_server(server: EmbeddedRedis) -> None:
    pid = server.pid
    assert pid is not None
    server.freeze()
    server.stop()
    assert not alive(pid)


def test_append_only_data_survives_a_restart(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path, append_only=True) as server:
        with client_of(server) as client:
            client.set("a", "1")
        server.stop()
        server.start()
        with client_of(server) as client:
            assert client.get("a") == b"1"


def test_a_taken_port_is_refused_with_the_servers_own_words(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RedisUnavailable, match=f"port {port}"):
            EmbeddedRedis(tmp_path, port=port).start()


def test_another_port_is_tried_when_the_first_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1]])
        monkeypatch.setattr("ops.embedded_redis.free_port", lambda host: next(ports, None) or free_port(host))
        with EmbeddedRedis(tmp_path) as server, client_of(server) as client:
            assert server.port != taken.getsockname()[1]
            assert client.ping()


def test_survives_the_thread_that_started_it(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path)
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    try:
        with client_of(server) as client:
            assert client.ping()
    finally:
        server.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals are Linux's")
def test_dies_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from ops.embedded_redis import EmbeddedRedis
server = EmbeddedRedis(Path({str(tmp_path)!r}))
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
    wait_until_gone(pid)


def test_falls_back_to_a_server_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = server_program()
    on_path = tmp_path / "bin" / "redis-server"
    on_path.parent.mkdir()
    shutil.copy(real, on_path)
    broken = tmp_path / "broken-server"
    broken.write_bytes(b"\x7fELF of another machine")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(on_path.parent))
    candidates = embedded_redis._candidates
    monkeypatch.setattr(embedded_redis, "_candidates", lambda: iter([broken, *list(candidates())[1:]]))
    server_program.cache_clear()
    try:
        assert server_program() == on_path
        with EmbeddedRedis(tmp_path / "data") as server, client_of(server) as client:
            assert client.ping()
    finally:
        server_program.cache_clear()


def test_says_what_to_install_when_nothing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_redis, "_candidates", lambda: iter([Path("/nonexistent/valkey-server")]))
    server_program.cache_clear()
    try:
        with pytest.raises(RedisUnavailable, match=r"apt install redis-server.*REDIS_URL"):
            server_program()
    finally:
        server_program.cache_clear()


def test_group_is_its_own(server: EmbeddedRedis) -> None:
    assert server.pid is not None
    assert os.getpgid(server.pid) == server.pid != os.getpgid(0)


def test_data_belongs_to_one_server_at_a_time(tmp_path: Path) -> None:
    with (
        EmbeddedRedis(tmp_path, append_only=True),
        pytest.raises(RedisUnavailable, match="another server is using"),
    ):
        EmbeddedRedis(tmp_path, append_only=True).start()
    with EmbeddedRedis(tmp_path, append_only=True) as server, client_of(server) as client:
        assert client.ping()


def test_takes_settings_of_the_server(tmp_path: Path) -> None:
    with (
        EmbeddedRedis(tmp_path, options={"requirepass": "hush", "maxmemory": "64mb"}) as server,
        redis.Redis("127.0.0.1", server.port or 0, password="hush", socket_timeout=5) as client,
    ):
        assert client.config_get("maxmemory") == {"maxmemory": str(64 * 2**20)}
        limits = client.config_get("client-output-buffer-limit")["client-output-buffer-limit"]
        assert f"pubsub {256 * 2**20} {64 * 2**20} 60" in str(limits)
