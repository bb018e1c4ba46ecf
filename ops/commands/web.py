"""`tgq web`: a web node, that is gunicorn with `WEB_CONCURRENCY` processes of the ASGI application."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import redis
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.glogging import Logger

from common.api_keys import KeyRing
from common.logs import configure_logging
from common.model_files import ModelNotFound, check_model
from common.redis_checks import RedisUnfit, check_redis
from common.redis_clients import sync_redis
from common.settings import Settings
from ops.child_process import die_with_parent
from ops.configuration import Configuration
from ops.draining_worker import ENDING_SECONDS
from ops.options import BAD_USAGE
from ops.ports import PortTaken, check_port

log = logging.getLogger(__name__)

METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
KEEP_ALIVE_SECONDS = 120
"""Idle connections are kept this long: longer than the load balancers in front of it keep theirs (60 s is common)."""
SILENCE_SECONDS = 120
"""A process whose event loop stands still this long is killed; starting, with a tokenizer to load, counts too."""


def run(configuration: Configuration) -> int:
    """Serve until told to stop; returns the exit status, 2 when there cannot be such a model. SIGTERM drains, a second signal
    ends it at once."""
    settings = configuration.settings
    try:
        check_model(settings, weights=False)
    except ModelNotFound as error:
        print(f"tgq: {error}", file=sys.stderr)
        return BAD_USAGE
    try:
        KeyRing(settings)
        check_port(settings.hostname, settings.port)
    except (ValueError, PortTaken) as error:
        print(f"tgq: {error}", file=sys.stderr)
        return 1
    configure_logging(settings)
    try:
        _look_at_redis(settings)
    except RedisUnfit as error:
        print(f"tgq: {error}", file=sys.stderr)
        return 1
    with _metrics_directory():
        try:
            _Server(settings).run()
        except SystemExit as stopped:
            return stopped.code if isinstance(stopped.code, int) else 1
    return 0


def _look_at_redis(settings: Settings) -> None:
    """Warn of settings that may cost requests; raises `RedisUnfit` for those that will."""
    try:
        with sync_redis(settings) as client:
            for advice in check_redis(client):
                log.warning("Redis: %s", advice)
    except redis.RedisError as error:
        # It may come later, and until then requests are refused. The workers look at it too.
        log.warning("Redis cannot be reached yet: %s", type(error).__name__)


class _Server(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn, told everything here: its own configuration files and variables are not read."""

    def __init__(self, settings: Settings) -> None:
        self._options = _options(settings)
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        return importlib.import_module("web.asgi").app

    def run(self) -> None:
        _Master(self).run()


class _Master(Arbiter):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's master, for which a second SIGTERM means at once, as SIGINT and SIGQUIT do."""

    _told = False

    def signal(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM:
            sig = signal.SIGQUIT if self._told else sig
            self._told = True
        super().signal(sig, frame)


class _Logger(Logger):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's messages in the form of all the others."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.propagate = True


def _options(settings: Settings) -> dict[str, Any]:
    host = f"[{settings.hostname}]" if ":" in settings.hostname else settings.hostname
    return {
        "bind": f"{host}:{settings.port}",
        "proc_name": "tgq-web",
        "workers": settings.web_concurrency,
        "worker_class": "ops.draining_worker.DrainingWorker",
        "asgi_loop": "uvloop",
        "asgi_lifespan": "on",
        # The application notices a client that left by itself and cancels its job over Redis; this is how long that may take.
        "asgi_disconnect_grace_period": math.ceil(settings.redis_timeout + settings.redis_connect_timeout + 2),
        "keepalive": KEEP_ALIVE_SECONDS,
        "timeout": SILENCE_SECONDS,
        "graceful_timeout": math.ceil(settings.graceful_termination_timeout + ENDING_SECONDS),
        "loglevel": settings.log_level,
        "logger_class": _Logger,
        "control_socket_disable": True,
        "post_fork": _after_fork,
        "child_exit": _after_exit,
    }


def _after_fork(arbiter: Any, worker: Any) -> None:
    # gunicorn's processes notice a killed master themselves, but then drain for the whole grace period.
    die_with_parent(arbiter.pid)


def _after_exit(arbiter: Any, worker: Any) -> None:
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _metrics_directory() -> Iterator[None]:
    """The folder in which the processes of this node share their metrics; empty at the start, gone at the end.

    A folder that was given is emptied of old metrics and stays. prometheus_client looks for it when it is first imported.
    """
    master = os.getpid()
    given = os.environ.get(METRICS_VARIABLE)
    directory = Path(given or tempfile.mkdtemp(prefix="tgq-metrics-"))
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.db"):
        old.unlink()
    os.environ[METRICS_VARIABLE] = str(directory)
    try:
        yield
    finally:
        # Forked processes leave through here as well.
        if not given and os.getpid() == master:
            shutil.rmtree(directory, ignore_errors=True)
