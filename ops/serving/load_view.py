"""What a worker shows of its model being fetched and loaded."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable

import structlog

from common.settings import Settings
from ops.serving.view import SECONDS_BETWEEN_LINES, TerminalView, View
from workers.engine.messages import LoadProgress

log = structlog.get_logger()

Show = Callable[[LoadProgress], None]


def load_view(settings: Settings) -> Show:
    """A bar for somebody who sits in front of it, else a log line for each stage and now and then; call it once logging is
    configured."""
    if not settings.progress:
        return lambda _progress: None
    if _watched() and not settings.json_output:
        return _on_bar(TerminalView())
    return _in_logs()


def _watched() -> bool:
    """Whether this process is in the foreground of its terminal; what a supervisor reads may be a terminal as well."""
    try:
        return sys.stderr.isatty() and os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except OSError:
        return False


def _on_bar(view: View) -> Show:
    def make_room(_record: logging.LogRecord) -> bool:
        view.done()
        return True

    # A line that is logged takes the bar away first; it comes back below with the next news.
    for handler in logging.getLogger().handlers:
        handler.addFilter(make_room)

    def show(progress: LoadProgress) -> None:
        if progress.fraction < 1:
            view.progress(progress.stage, progress.fraction, progress.detail)
        else:
            view.done()

    return show


def _in_logs() -> Show:
    stage, again_at = "", 0.0

    def show(progress: LoadProgress) -> None:
        nonlocal stage, again_at
        now = time.monotonic()
        if progress.stage != stage or now >= again_at:
            stage, again_at = progress.stage, now + SECONDS_BETWEEN_LINES
            log.info(
                "model_loading", stage=stage, percent=round(100 * progress.fraction), detail=progress.detail or None
            )

    return show
