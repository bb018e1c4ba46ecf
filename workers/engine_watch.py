"""Notices an engine process that lives and does nothing: frozen, or stuck in a step."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import structlog

from common.settings import Settings
from common.wire import ModelCard

log = structlog.get_logger()

STALL_SECONDS = {"cuda": 20.0}
"""Longest step by device, unless it is set; 60 s elsewhere."""
TICK_SECONDS = 0.25
STOOD_STILL_SECONDS = 1.0
"""A look this late means that this process stood still itself: it cannot say how long the engine was silent."""


class EngineWatch:
    """A thread for the life of one engine process; it calls `kill` once, after it has set `verdict`.

    Apart from the thread that reads the engine's messages, which hangs when the engine freezes in the middle of one.
    """

    def __init__(
        self, signs: Connection, settings: Settings, *, busy: Callable[[], bool], kill: Callable[[], None]
    ) -> None:
        """
        Args:
            signs: ends when the process does; a byte comes every quarter of a second (`workers.engine_child`).
            settings: how long is too long.
            busy: whether the engine has anything to do.
            kill: ends the process.
        """
        self.verdict: str | None = None
        """Why the process was killed."""
        self.heard_at = time.monotonic()
        """When the engine's last message came; its owner writes it."""
        self._signs = signs
        self._settings = settings
        self._busy = busy
        self._kill = kill
        self._stall_timeout: float | None = None
        self._over = False
        self._thread = threading.Thread(target=self._run, name="engine-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The process has ended: end the thread."""
        self._over = True
        self._thread.join()

    def ready(self, card: ModelCard) -> None:
        """The engine is loaded: from now on its silence counts."""
        self._stall_timeout = self._settings.engine_stall_timeout or STALL_SECONDS.get(card.device_type, 60.0)

    def _run(self) -> None:
        readable = select.poll()
        readable.register(self._signs.fileno(), select.POLLIN)
        looked_at = alive_at = idle_at = time.monotonic()
        while not self._over:
            alive = bool(readable.poll(TICK_SECONDS * 1000))
            if alive and not os.read(self._signs.fileno(), 4096):
                return
            now = time.monotonic()
            # While it loads it may do anything for any time.
            forgiven = self._stall_timeout is None or now - looked_at > STOOD_STILL_SECONDS
            looked_at = now
            if alive or forgiven:
                alive_at = now
            if forgiven or not self._busy():
                idle_at = now
            if now - max(alive_at, self.heard_at) > self._settings.engine_frozen_timeout:
                self._end(f"showed no sign of life for {self._settings.engine_frozen_timeout:g} s")
            elif self._stall_timeout is not None and now - max(idle_at, self.heard_at) > self._stall_timeout:
                self._end(f"finished no step for {self._stall_timeout:g} s")

    def _end(self, what: str) -> None:
        if self.verdict is None:
            self.verdict = f"the engine {what}"
            log.error("engine_killed", reason=self.verdict)
            self._kill()
