"""Redis servers of more than one process, and certificates, for tests."""

from __future__ import annotations

import ssl
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import redis

from ops.child_process import spawn
from ops.embedded_redis import HOST, EmbeddedRedis, server_program
from ops.ports import free_port

MASTER_NAME = "main"
FORBIDDEN = (
    "CONFIG SET maxmemory 1",
    "CONFIG REWRITE",
    "REPLICAOF 127.0.0.1 1",
    "SLAVEOF 127.0.0.1 1",
    "FAILOVER",
    "DEBUG SLEEP 0",
    "MODULE LIST",
    "ACL LIST",
    "ACL SETUSER default nopass",
    "SHUTDOWN NOSAVE",
    "SAVE",
    "FLUSHALL",
    "FLUSHDB",
    "SWAPDB 0 1",
    "KEYS *",
    "MONITOR",
    "CLIENT KILL TYPE normal",
)
"""With these a server is taken over, or loses what it holds."""


def assert_out_of_reach(client: redis.Redis) -> None:
    """Whoever has this connection cannot take the server over or empty it."""
    for command in FORBIDDEN:
        with pytest.raises(redis.ResponseError, match=r"no permissions|not allowed"):
            client.execute_command(*command.split())  # type: ignore[no-untyped-call]
    with pytest.raises(redis.ResponseError, match="ACL"):
        client.eval("redis.call('FLUSHALL')", 0)


def answers(client: redis.Redis) -> bool:
    """Whether this server can be reached and lets the client in."""
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


class SentinelGroup:
    """A primary, a replica, and Sentinels that make the replica the primary when the primary is gone for a second."""

    def __init__(self, directory: Path, *, sentinels: int = 1, password: str = "", sentinel_password: str = "") -> None:
        self._directory = directory
        self._password, self._sentinel_password = password, sentinel_password
        options = {"requirepass": password, "masterauth": password} if password else {}
        self.primary = EmbeddedRedis(directory / "primary", options=options)
        self._replica_options = options | {"repl-diskless-sync-delay": "0"}
        self.replica: EmbeddedRedis
        self.sentinel_ports = [free_port(HOST) for _ in range(sentinels)]
        self._processes: list[subprocess.Popen[Any]] = []

    @property
    def url(self) -> str:
        credentials = f":{self._password}@" if self._password else ""
        hosts = ",".join(f"{HOST}:{port}" for port in self.sentinel_ports)
        extra = f"&sentinel_password={self._sentinel_password}" if self._sentinel_password else ""
        return f"sentinel://{credentials}{hosts}/0?master_name={MASTER_NAME}{extra}"

    def __enter__(self) -> Self:
        try:
            self.primary.start()
            options = self._replica_options | {"replicaof": f"{HOST} {self.primary.port}"}
            self.replica = EmbeddedRedis(self._directory / "replica", options=options)
            self.replica.start()
            for number, port in enumerate(self.sentinel_ports):
                self._processes.append(self._start_sentinel(number, port))
            self._wait_until_watched()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for server in (self.primary, getattr(self, "replica", None)):
            if server is not None:
                server.kill()

    def client(self, server: EmbeddedRedis) -> redis.Redis:
        return redis.Redis(HOST, server.port or 0, password=self._password or None, socket_timeout=5)

    def _start_sentinel(self, number: int, port: int) -> subprocess.Popen[Any]:
        lines = [
            f"port {port}",
            f"bind {HOST}",
            f"sentinel monitor {MASTER_NAME} {HOST} {self.primary.port} {len(self.sentinel_ports) // 2 + 1}",
            f"sentinel down-after-milliseconds {MASTER_NAME} 1000",
            f"sentinel failover-timeout {MASTER_NAME} 5000",
        ]
        if self._password:
            lines.append(f"sentinel auth-pass {MASTER_NAME} {self._password}")
        if self._sentinel_password:
            lines.append(f"requirepass {self._sentinel_password}")
        folder = self._directory / f"sentinel-{number}"
        folder.mkdir(parents=True)
        configuration = folder / "sentinel.conf"
        configuration.write_text("\n".join([*lines, f"dir {folder}", ""]))
        with (folder / "log").open("wb") as log:
            return spawn([server_program(), configuration, "--sentinel"], directory=folder, stdout=log, stderr=log)

    def _wait_until_watched(self) -> None:
        """Until every Sentinel knows the replica, which is in step, and its peers."""
        deadline = time.monotonic() + 20
        while not self._watched():
            assert time.monotonic() < deadline, "the Sentinels did not find the replica"
            time.sleep(0.05)

    def _watched(self) -> bool:
        try:
            with self.client(self.replica) as client:
                if client.info("replication").get("master_link_status") != "up":
                    return False
            for port in self.sentinel_ports:
                with redis.Redis(
                    HOST, port, password=self._sentinel_password or None, socket_timeout=5, decode_responses=True
                ) as sentinel:
                    state: dict[str, Any] = sentinel.sentinel_master(MASTER_NAME)
                    if state["num-slaves"] < 1 or state["num-other-sentinels"] < len(self.sentinel_ports) - 1:
                        return False
        except redis.RedisError:
            return False
        return True


@dataclass(frozen=True)
class Certificates:
    """A certificate authority and what it has signed for this machine's loopback address."""

    authority: Path
    server: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server, self.key)
        return context


def make_certificates(directory: Path) -> Certificates:
    """Made with the `openssl` program."""

    def openssl(*arguments: str | Path) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=directory, timeout=60)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=test server")
    (directory / "names").write_text(f"subjectAltName=IP:{HOST}\n")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.pem", *signing)
    return Certificates(directory / "ca.pem", directory / "server.pem", directory / "server.key")
