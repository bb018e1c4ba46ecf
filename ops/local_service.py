"""A whole service as child processes of this one, for benchmarks and tests: Redis, workers, batch runners, web nodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from common.settings import DEFAULT_MODEL, SCRIPTED_MODEL, Settings
from ops.child_process import spawn
from ops.embedded_redis import EmbeddedRedis
from ops.ports import free_port
from workers.engine.default_model import ensure_default_model


class ServiceFailed(Exception):
    """A part of the service did not come up or ended early; the message ends with the tail of its log."""


class Part:
    """One process of the service with its log file."""

    def __init__(self, name: str, arguments: list[str], environment: Mapping[str, str], directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = spawn(
                [sys.executable, "-m", "ops.cli", *arguments],
                environment=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def tail(self, characters: int = 4000) -> str:
        return self.log.read_text(errors="replace")[-characters:]

    def terminate(self) -> None:
        if self.alive:
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the process alone: what it started must notice by itself."""
        if self.alive:
            self.process.kill()
            self.process.wait()

    def wait(self, seconds: float) -> int:
        return self.process.wait(timeout=seconds)


class LocalService:
    """Starts `tgq worker`, `tgq batch-worker` and `tgq web` processes on an embedded Redis (or `redis_url`) and stops them
    again. Files of batches are kept in its directory.

    Args:
        web: web nodes, each its own `tgq web` on its own port.
        workers: `tgq worker` processes.
        batch_workers: `tgq batch-worker` processes.
        settings: environment variables for all of them (`{"MODEL_ID": "scripted"}`).
        append_only: whether the embedded Redis keeps its data over restarts.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        web: int = 1,
        workers: int = 1,
        batch_workers: int = 0,
        redis_url: str | None = None,
        directory: Path | None = None,
        append_only: bool = False,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="tgq-") if directory is None else None
        self.directory = Path(self._temporary.name) if self._temporary else Path(str(directory))
        self._settings = dict(settings or {})
        self._counts = (web, workers, batch_workers)
        self.redis = None if redis_url else EmbeddedRedis(self.directory / "redis", append_only=append_only)
        self._redis_url = redis_url
        self.web: list[Part] = []
        self.workers: list[Part] = []
        self.batch_workers: list[Part] = []
        self.urls: list[str] = []
        self._started = 0

    @property
    def redis_url(self) -> str:
        if self._redis_url:
            return self._redis_url
        assert self.redis is not None
        return self.redis.url

    @property
    def url(self) -> str:
        """Address of the first web node."""
        return self.urls[0]

    def start(self, *, timeout: float = 240.0) -> Self:
        """Start everything and wait until every web node is healthy and every worker is ready."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._prepare_model()
        try:
            if self.redis:
                self.redis.start()
            for _ in range(self._counts[1]):
                self.add_worker()
            for _ in range(self._counts[2]):
                self.add_batch_worker()
            for _ in range(self._counts[0]):
                self.add_web()
            self.wait_ready(timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def _prepare_model(self) -> None:
        """Convert the packaged model on its first use: a web node reads its files and does not make them."""
        environment = {**os.environ, **self._settings}
        given = {
            name: value for name in ("model_id", "cache_dir") if (value := environment.get(Settings.variable(name)))
        }
        settings = Settings.of(**given)
        if settings.model_id in (DEFAULT_MODEL, SCRIPTED_MODEL):
            ensure_default_model(settings, lambda stage, fraction: None)

    def add_worker(self, settings: Mapping[str, str] | None = None) -> Part:
        part = self._part("worker", ["worker"], settings or {})
        self.workers.append(part)
        return part

    def add_batch_worker(self, settings: Mapping[str, str] | None = None) -> Part:
        part = self._part("batch-worker", ["batch-worker"], settings or {})
        self.batch_workers.append(part)
        return part

    def add_web(self, settings: Mapping[str, str] | None = None) -> Part:
        port = free_port("127.0.0.1")
        part = self._part("web", ["web"], {"PORT": str(port), **(settings or {})})
        self.web.append(part)
        self.urls.append(f"http://127.0.0.1:{port}")
        return part

    def _part(self, kind: str, arguments: list[str], settings: Mapping[str, str]) -> Part:
        self._started += 1
        environment = {
            **os.environ,
            "HOSTNAME": "127.0.0.1",
            "REDIS_URL": self.redis_url,
            "TGQ_REDIS_PASSWORD_FILE": "",
            "HF_HUB_OFFLINE": "1",
            "TGQ_BATCH_STORAGE": str(self.directory / "batches"),
            **self._settings,
            **settings,
        }
        return Part(f"{kind}-{self._started}", arguments, environment, self.directory)

    def wait_ready(self, timeout: float = 240.0) -> None:
        """Wait until every living web node answers `/health` with 200 and sees all living workers as ready.

        Raises:
            ServiceFailed: a part ended, or the time is over.
        """
        deadline = time.monotonic() + timeout
        with httpx.Client(timeout=5) as client:
            while not self._ready(client):
                for part in (*self.web, *self.workers, *self.batch_workers):
                    if not part.alive:
                        raise ServiceFailed(f"{part.name} ended with {part.process.returncode}:\n{part.tail()}")
                if time.monotonic() > deadline:
                    tails = "\n".join(f"--- {part.name}\n{part.tail(1500)}" for part in (*self.web, *self.workers))
                    raise ServiceFailed(f"not ready after {timeout:g} s\n{tails}")
                time.sleep(0.05)

    def _ready(self, client: httpx.Client) -> bool:
        ready = sum(part.alive for part in self.workers)
        try:
            for url in self.urls:
                if client.get(f"{url}/health").status_code != 200:
                    return False
                if ready_workers(client.get(f"{url}/metrics").text) != ready:
                    return False
        except httpx.HTTPError:
            return False
        return True

    def stop(self, *, timeout: float = 30.0) -> None:
        """SIGTERM to web nodes, then batch runners, workers, Redis; SIGKILL to what is still there after `timeout` seconds."""
        for parts in (self.web, self.batch_workers, self.workers):
            for part in parts:
                part.terminate()
            deadline = time.monotonic() + timeout
            for part in parts:
                try:
                    part.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    part.kill()
        if self.redis:
            self.redis.stop()
        if self._temporary:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def ready_workers(metrics: str) -> int:
    """Workers that can take jobs, as a web node's `/metrics` tells."""
    found = re.search(r'^tgq_workers\{state="ready"\} (\S+)$', metrics, re.MULTILINE)
    return int(float(found[1])) if found else 0
