"""The engine process: reads jobs from a pipe, steps the engine, writes what each step produced.

No busy thread runs here that holds Python's lock, which would slow every step: the one that compiles grammars does not. Exit codes: 0 told to leave or the pipe closed, 1 the engine
broke, 3 the model could not be loaded.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec

from common.garbage import settle_heap
from common.limits import resolve_limits
from common.logs import configure_logging
from common.model_files import find_model
from common.settings import SCRIPTED_MODEL, Settings
from common.tokenizer import Tokenizer
from common.wire import encode_msgpack
from workers.engine.default_model import ensure_default_model
from workers.engine.engine import Engine
from workers.engine.load_progress import Progress
from workers.engine.messages import (
    AddJobs,
    CancelJobs,
    EngineFailure,
    EngineOutput,
    FromEngine,
    LoadProgress,
    Ready,
    Shutdown,
    decode_to_engine,
)
from workers.engine.plan import EngineBroken, ModelRunner

log = logging.getLogger(__name__)

STATS_SECONDS = 0.25
SIGN_OF_LIFE_SECONDS = 1.0
"""An engine with work sends something this often even while nothing is due."""
Loader = Callable[[Settings, Progress], tuple[ModelRunner, Tokenizer]]
EXIT_BROKEN = 1
EXIT_NOT_LOADED = 3


def load(settings: Settings, progress: Progress) -> tuple[ModelRunner, Tokenizer]:
    """The model named by the settings, and its tokenizer.

    Args:
        settings: model, limits and device.
        progress: told the stage and the fraction of the load that is done.
    """
    if settings.model_id == SCRIPTED_MODEL:
        from workers.engine.scripted_model import ScriptedModel

        ensure_default_model(settings, progress)  # It has no weights, but it needs a tokenizer.
        files = find_model(settings, weights=False)
        tokenizer = Tokenizer(files)
        return ScriptedModel(tokenizer, resolve_limits(settings, files.context_length), settings), tokenizer
    progress("starting torch", 0.0)  # Importing it takes seconds.
    from workers.engine.model_loader import load_runner

    runner = load_runner(settings, progress)
    return runner, Tokenizer(find_model(settings, weights=False))


def run(connection: Connection, settings: Settings, load: Loader = load) -> None:
    """Be the engine process until told to leave; `connection` is the worker's pipe."""
    # Ctrl-C reaches the whole process group; the worker decides when its engine leaves.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure_logging(settings)

    def send(message: FromEngine) -> None:
        connection.send_bytes(encode_msgpack(message))

    def tell(words: str, fraction: float) -> None:
        stage, _, detail = words.partition(": ")
        send(LoadProgress(stage, fraction, detail))

    try:
        runner, tokenizer = load(settings, tell)
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        # The boundary of the process: whatever went wrong, the worker is told and the supervisor sees the exit code.
        log.debug("the model could not be loaded", exc_info=True)
        message = f"{settings.model_id} could not be loaded: {error or type(error).__name__}"
        sys.stderr.write(f"{message}\n")
        with contextlib.suppress(OSError):
            send(EngineFailure(message))
        sys.exit(EXIT_NOT_LOADED)
    settle_heap()
    try:
        send(Ready(runner.card))
        _serve(connection, Engine(runner, tokenizer, settings), runner, send)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except EngineBroken as error:
        log.exception("the engine broke")
        with contextlib.suppress(OSError):
            send(EngineFailure(f"the engine broke: {error}"))
        sys.exit(EXIT_BROKEN)


def _serve(connection: Connection, engine: Engine, runner: ModelRunner, send: Callable[[FromEngine], None]) -> None:
    """Mail, step, send; until `Shutdown` or the end of the pipe."""
    stats_at = 0.0
    while True:
        if not _read_mail(connection, engine, runner.follows):
            return
        if runner.refresh():
            send(Ready(runner.card))
        events = engine.take_events()
        if events:
            # What the mail led to does not wait for a step.
            send(EngineOutput(events))
        due = engine.next_due()
        stepped = due is not None and due <= time.monotonic()
        events = engine.step() if stepped else []
        now = time.monotonic()
        if now >= stats_at or not engine.has_work:
            stats_at = now + STATS_SECONDS
            send(EngineOutput(events, engine.stats()))
        elif stepped:
            send(EngineOutput(events))


def _read_mail(connection: Connection, engine: Engine, follows: bool) -> bool:
    """Take all messages there are, waiting for one while there is nothing to do; False: leave."""
    timeout = _patience(engine.next_due())
    if timeout is None and follows:
        timeout = SIGN_OF_LIFE_SECONDS
    while connection.poll(timeout):
        match _decode(connection.recv_bytes()):
            case AddJobs(jobs):
                engine.add(jobs)
            case CancelJobs(requests):
                engine.cancel(requests)
            case Shutdown():
                return False
        timeout = 0.0
    return True


def _patience(due: float | None) -> float | None:
    """Seconds to wait for mail; None: for ever, the end of the pipe is news as well."""
    if due is None:
        return None
    return min(max(0.0, due - time.monotonic()), SIGN_OF_LIFE_SECONDS)


def _decode(data: bytes) -> AddJobs | CancelJobs | Shutdown | None:
    try:
        return decode_to_engine(data)
    except msgspec.DecodeError:
        # One message nobody can read must not end the requests that run.
        log.exception("a message from the worker cannot be read")
        return None
