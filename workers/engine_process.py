"""Owns the engine process: starts it, talks to it over a pipe, notices its death or stall, starts it again."""

from __future__ import annotations

import multiprocessing
import os
import queue
import select
import threading
import time
from multiprocessing.connection import Connection
from typing import Protocol

import msgspec
import structlog

from common.settings import Settings
from common.wire import Job, encode_msgpack
from workers.engine.messages import (
    AddJobs,
    CancelJobs,
    EngineFailure,
    EngineOutput,
    FromEngine,
    LoadProgress,
    Ready,
    Shutdown,
    ToEngine,
    decode_from_engine,
)
from workers.engine_child import run_child
from workers.engine_watch import EngineWatch

log = structlog.get_logger()

RESTART_SECONDS = (0.2, 5.0)
"""First and longest pause before a restart; it doubles with every failure in a row."""
STEADY_SECONDS = 10.0
"""An engine that was ready this long starts over with the shortest pause."""
LOAD_FAILURES = 5
"""After this many engines in a row that could not load, the worker gives up."""
TICK_SECONDS = 0.25
EXIT_SECONDS = 1.0
"""An engine told to leave is killed after this time; nothing in it is needed any more."""


class EngineListener(Protocol):
    """Who hears of the engine; every call comes from the engine's own thread and must not block."""

    def on_progress(self, progress: LoadProgress) -> None: ...

    def on_ready(self, ready: Ready) -> None: ...

    def on_output(self, output: EngineOutput) -> None: ...

    def on_lost(self, reason: str) -> None:
        """The process is gone, with all it held; it will be started again."""

    def on_given_up(self, reason: str) -> None:
        """It will not: again and again it could not load."""

    def busy(self) -> bool:
        """Whether the engine has anything to do."""


class EngineProcess:
    """One engine process at a time, run by one thread for as long as the worker lives.

    The thread must outlive the process: a child with a parent-death signal dies with the thread that started it.
    """

    def __init__(self, settings: Settings, listener: EngineListener) -> None:
        self._settings = settings
        self._listener = listener
        self._outgoing: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._kill = threading.Event()
        self._first_ready = threading.Event()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._ready_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.load_error: str | None = None
        """Why the first engine could not load; the worker then gives up."""

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.is_alive() else None

    def start(self) -> None:
        self._thread.start()

    def wait_loaded(self, timeout: float) -> bool:
        """Whether the first engine is ready, or has failed (`load_error`), within `timeout` seconds."""
        return self._first_ready.wait(timeout)

    def add(self, jobs: list[Job]) -> None:
        """Never blocks, whatever the engine does."""
        self._outgoing.put(AddJobs(jobs))

    def cancel(self, requests: list[str]) -> None:
        self._outgoing.put(CancelJobs(requests))

    def stop(self, *, at_once: bool = False) -> None:
        """End the process: after its running step, or by SIGKILL; returns when it is gone."""
        self._stopping.set()
        if at_once:
            self._kill.set()
        self._outgoing.put(Shutdown())
        if self._thread.is_alive():
            self._thread.join(EXIT_SECONDS + 5)

    def _run(self) -> None:
        pause = RESTART_SECONDS[0]
        load_failures = 0
        while not self._stopping.is_set():
            reason = self._live_once()
            if self._stopping.is_set():
                return
            if not self._first_ready.is_set():
                self.load_error = reason
                self._first_ready.set()
                return
            load_failures = load_failures + 1 if self._ready_at is None else 0
            if self._ready_at is not None and time.monotonic() - self._ready_at > STEADY_SECONDS:
                pause = RESTART_SECONDS[0]
            log.error("engine_lost", reason=reason, restart_in_seconds=pause)
            self._listener.on_lost(reason)
            if load_failures == LOAD_FAILURES:
                self._listener.on_given_up(reason)
                return
            self._stopping.wait(pause)
            pause = min(2 * pause, RESTART_SECONDS[1])

    def _live_once(self) -> str:
        """Start one process and serve it until it is gone; returns why it went."""
        self._ready_at = None
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        signs, their_signs = context.Pipe(duplex=False)
        process = context.Process(
            target=run_child, args=(theirs, their_signs, self._settings, os.getpid()), name="tgq-engine", daemon=True
        )
        process.start()
        theirs.close()
        their_signs.close()
        self._process = process
        watch = EngineWatch(signs, self._settings, busy=self._listener.busy, kill=process.kill)
        watch.start()
        # Messages for an engine that is gone must not reach the next one: it is told anew.
        outgoing = self._outgoing = queue.SimpleQueue()
        writer = threading.Thread(target=_write, args=(outgoing, ours), name="engine-writer", daemon=True)
        writer.start()
        try:
            failure = self._read(ours, watch)
        finally:
            outgoing.put(None)
            process.join(0.5)  # A pipe that ended is a process that ends.
            if process.is_alive():
                process.kill()
                process.join()
            ours.close()
            watch.stop()
            signs.close()
        return watch.verdict or failure or f"the engine process ended with exit code {process.exitcode}"

    def _read(self, pipe: Connection, watch: EngineWatch) -> str | None:
        """Hand on the engine's messages until the pipe ends or the engine is to be killed."""
        failure = None
        told_to_leave_at: float | None = None
        readable = select.poll()  # `Connection.poll` makes a selector anew every time, once for each step here
        readable.register(pipe.fileno(), select.POLLIN)
        while True:
            try:
                if readable.poll(TICK_SECONDS * 1000):
                    message = decode_from_engine(pipe.recv_bytes())
                    watch.heard_at = time.monotonic()
                    if isinstance(message, EngineFailure):
                        failure = message.message
                    else:
                        self._hand_on(message, watch)
            except (EOFError, OSError):
                return failure
            except msgspec.DecodeError as error:
                return f"the engine sent a message that cannot be read: {error}"
            if self._kill.is_set():
                return "killed"
            if self._stopping.is_set():
                told_to_leave_at = told_to_leave_at or time.monotonic()
                if time.monotonic() - told_to_leave_at > EXIT_SECONDS:
                    return "killed"

    def _hand_on(self, message: FromEngine, watch: EngineWatch) -> None:
        try:
            match message:
                case LoadProgress():
                    self._listener.on_progress(message)
                case Ready():
                    self._ready_at = time.monotonic()
                    watch.ready(message.card)
                    self._listener.on_ready(message)
                    self._first_ready.set()
                case EngineOutput():
                    self._listener.on_output(message)
        except Exception:
            # This thread is the engine's only reader: a fault of one message must not stop all others.
            log.exception("engine_message_failed", kind=type(message).__name__)


def _write(outgoing: queue.SimpleQueue[ToEngine | None], pipe: Connection) -> None:
    """Thread: an engine that does not read its pipe blocks nobody else."""
    while (message := outgoing.get()) is not None:
        try:
            pipe.send_bytes(encode_msgpack(message))
        except (OSError, ValueError):
            return  # The process is gone; the reader notices.
