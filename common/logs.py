"""Logging of every process: structlog and the standard library's loggers in one form on standard error.

Prompts, answers and keys are never passed to a logger. Tracebacks are printed without local variables for the same reason.
Whatever goes wrong again and again is told a few times a minute and counted in between: a loop that retries fills no disk.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any

import structlog

from common.settings import Settings

REPEATS = 5
"""Warnings and errors of one kind that are logged ..."""
REPEAT_SECONDS = 60.0
"""... in this time."""
KINDS_KEPT = 1000


class _Told:
    __slots__ = ("count", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.count = 0


class RepeatFilter(logging.Filter):
    """Lets pass `REPEATS` warnings and errors of one kind in `REPEAT_SECONDS`; the next one says how many it stands for.

    A kind is a logger and what it says, before names and numbers are filled in. What is less severe always passes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[tuple[str, str], _Told] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        event = record.msg
        kind = record.name, str(event.get("event") if isinstance(event, dict) else event)
        now = time.monotonic()
        with self._lock:
            told = self._told.get(kind)
            if told is None or now - told.since > REPEAT_SECONDS:
                unsaid = max(told.count - REPEATS, 0) if told is not None else 0
                if len(self._told) >= KINDS_KEPT:
                    self._told.clear()
                told = self._told[kind] = _Told(now)
                if unsaid:
                    self._say(record, unsaid)
            told.count += 1
            return told.count <= REPEATS

    @staticmethod
    def _say(record: logging.LogRecord, unsaid: int) -> None:
        if isinstance(record.msg, dict):
            record.msg = {**record.msg, "unsaid": unsaid}
        else:
            record.msg = f"{record.msg} ({unsaid} like it were not logged)"


def configure_logging(settings: Settings) -> None:
    """Readable lines on a terminal, one JSON object per line otherwise (or with `JSON_OUTPUT`)."""
    readable = sys.stderr.isatty() and not settings.json_output
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    final: list[Any] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if readable
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(RepeatFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    # It logs every address it asks, and those of the hub's files are signed: who has one may fetch the file.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
