"""The whole service on one machine: what starts in which order, what is kept running, what stops in which order."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import redis

from common.admission import held_sync
from common.keys import Keys
from common.model_files import check_model
from common.redis_checks import check_redis
from common.redis_clients import sync_redis
from common.registry import live_workers_sync
from common.settings import Settings
from ops.embedded_redis import EmbeddedRedis
from ops.ports import check_port, free_port
from ops.serving.child import Child, ChildFailed
from ops.serving.kept_redis import KeptRedis
from ops.serving.model import ModelPreparation
from ops.serving.view import LinesOnly, View
from ops.serving.welcome import local_address, welcome

POLL_SECONDS = 0.1
LOOK_SECONDS = 0.5
"""Between two looks at the service while it starts."""
STOP_MARGIN = 5.0
"""Seconds a child has beyond the grace period to end before it is killed."""


class Stopped(Exception):
    """Somebody asked for the end while the service was starting or running."""


class Service:
    """Redis, workers, batch runners and a web node as children of this process.

    `stop_signals` counts the requests to stop: the first one stops in order, another one kills.
    """

    def __init__(self, settings: Settings, view: View) -> None:
        self.stop_signals = 0
        self._view = view if settings.progress else LinesOnly(view)
        port = settings.port or free_port(settings.hostname)
        self._directory = Path(tempfile.mkdtemp(prefix="tgq-"))
        self._redis = self._embedded(settings) if settings.redis_url is None else None
        self._kept_redis: KeptRedis | None = None
        self._settings = settings
        self._port = port
        self._model = ModelPreparation(self._view)
        self._workers: list[Child] = []
        self._runners: list[Child] = []
        self._web: Child | None = None

    def _embedded(self, settings: Settings) -> EmbeddedRedis:
        lasting = settings.redis_data
        return EmbeddedRedis(lasting or self._directory / "redis", append_only=lasting is not None)

    def run(self) -> int:
        """Start everything, keep it running until it is told to stop, stop everything. See `run_for`."""
        return self.run_for(self._keep_running)

    def run_for(self, work: Callable[[], None]) -> int:
        """Start everything, do some work, stop everything.

        Args:
            work: called when all is ready; it has to call `tend` or `look_after` several times a second, and may end with
                `Stopped`.

        Returns the exit status: 0 after an orderly stop, 130 after a kill.

        Raises:
            ModelNotFound: there cannot be such a model; nothing was started.
            ChildFailed, RedisUnavailable, RedisUnfit, PortTaken: the service cannot start, or a part of it does not stay;
                nothing of it is left running.
        """
        try:
            with contextlib.suppress(Stopped):
                self._start()
                self._wait_until_ready()
                work()
            return self._stop()
        finally:
            self._kill()
            self._view.done()
            shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def address(self) -> str:
        return local_address(self._settings.hostname, self._port)

    def _start(self) -> None:
        check_model(self._settings, weights=True)
        check_port(self._settings.hostname, self._port)
        if self._redis is None:
            # One clear word instead of one from every child; what is no refusal the children say.
            with contextlib.suppress(redis.RedisError), sync_redis(self._settings) as client:
                check_redis(client)
        if self._model.needed(self._settings):
            self._model.start()
            while (status := self._model.poll()) is None:
                self._pause()
            if status != 0:
                raise ChildFailed("the default model could not be prepared (see above)")
        self._view.progress("starting", 0.0)
        # What the workers would say of their progress is shown here.
        environment = os.environ | {"PORT": str(self._port), Settings.variable("progress"): "false"}
        if self._redis is not None:
            self._redis.start()
            self._kept_redis = KeptRedis(self._redis, self._view)
            environment["REDIS_URL"] = self._redis.url
            self._settings = self._settings.model_copy(update={"redis_url": self._redis.url})
        self._workers = self._several("worker", self._settings.workers, environment)
        told = ["--forgetful-redis"] if self._redis is not None and self._settings.redis_data is None else []
        self._runners = self._several("batch-worker", self._settings.batch_workers, environment, *told)
        metrics = {"PROMETHEUS_MULTIPROC_DIR": str(self._directory / "metrics")}
        self._web = Child("web", ["web"], environment | metrics, self._view)
        for child in self._children:
            child.start()

    def _several(self, command: str, count: int, environment: Mapping[str, str], *options: str) -> list[Child]:
        names = [f"{command}-{number}" for number in range(1, count + 1)] if count > 1 else [command][:count]
        return [Child(name, [command, *options], environment, self._view) for name in names]

    def _wait_until_ready(self) -> None:
        next_look = 0.0
        while True:
            self.tend()
            if time.monotonic() >= next_look:
                if self._healthy():
                    break
                self._show_load()
                next_look = time.monotonic() + LOOK_SECONDS
        self._view.done()
        for child in self._children:
            child.works = True

    def _keep_running(self) -> None:
        print(welcome(self._settings, self.address, embedded_redis=self._redis is not None), flush=True)
        while True:
            self.tend()

    def tend(self) -> None:
        """Look after all parts for a moment.

        Raises:
            Stopped: the service is told to stop.
            ChildFailed, RedisUnavailable: see `run_for`.
        """
        self._pause()
        self.look_after()

    def look_after(self) -> None:
        """Start again what ended; whether the service is told to stop or not. Raises as `tend`."""
        if self._kept_redis is not None:
            self._kept_redis.tend()
        for child in self._children:
            try:
                child.tend()
            except ChildFailed as error:
                if child in self._runners:
                    self._runners.remove(child)
                    self._view.line(f"tgq: going on without a batch runner: {error}")
                elif child in self._workers and self._workers != [child] and child.works:
                    self._workers.remove(child)
                    self._view.line(f"tgq: going on without a worker: {error}")
                else:
                    raise

    def _stop(self) -> int:
        """Stop in order, so that what still runs has what it needs: web nodes drain, batch runners note how far they
        are, workers finish, Redis goes last."""
        self._view.done()
        if self.stop_signals:
            again = "Ctrl-C again ends it now" if sys.stderr.isatty() else "once more to end it at once"
            self._view.line(f"tgq: stopping{self._awaited()}; {again}")
        self._model.stop()
        for children in ([self._web] if self._web else [], self._runners, self._workers):
            for child in children:
                child.terminate()
            deadline = time.monotonic() + self._settings.graceful_termination_timeout + STOP_MARGIN
            while any(child.alive for child in children):
                if self.stop_signals > 1:
                    return 130
                if time.monotonic() > deadline:
                    self._view.line("tgq: the grace period is over; ending what is left")
                    break
                time.sleep(POLL_SECONDS)
            for child in children:
                child.kill()
        if self._redis is not None:
            self._redis.stop()
        return 0

    def _awaited(self) -> str:
        """What the stop waits for, in words; of a Redis that others use too, it is not known whose answers these are."""
        if self._redis is None or self._web is None:
            return ""
        try:
            with sync_redis(self._settings) as client:
                answers = held_sync(client, Keys(self._settings.key_prefix))
        except redis.RedisError:
            answers = 0
        if not answers:
            return ""
        limit = self._settings.graceful_termination_timeout
        return f": waiting for {answers} {'answer' if answers == 1 else 'answers'}, {limit:g} s at most"

    def _kill(self) -> None:
        self._model.stop()
        for child in self._children:
            child.kill()
        if self._redis is not None:
            self._redis.kill()

    @property
    def _children(self) -> list[Child]:
        return [*self._workers, *self._runners, *([self._web] if self._web else [])]

    def _pause(self) -> None:
        if self.stop_signals:
            raise Stopped
        time.sleep(POLL_SECONDS)

    def _healthy(self) -> bool:
        address = urlsplit(self.address)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _show_load(self) -> None:
        """How far the workers' engines have loaded; the slowest one counts, of those that do something that can be told."""
        try:
            with sync_redis(self._settings) as client:
                keys = Keys(self._settings.key_prefix)
                records = live_workers_sync(client, keys, self._settings.worker_dead_after)
        except redis.RedisError:
            records = []
        slowest = min(records, key=lambda record: (not record.stage_detail, record.progress), default=None)
        if slowest is None:
            self._view.progress("loading the model", 0.0)
        else:
            self._view.progress(slowest.stage or "loading the model", slowest.progress, slowest.stage_detail)
