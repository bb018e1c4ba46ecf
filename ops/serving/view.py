"""What a person sees while a model loads and a service starts: a bar on a terminal, a line now and then elsewhere.

All of it goes to standard error; standard output has the address and the `curl` line alone.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import Protocol

from rich.console import Console
from rich.text import Text

from ops.bar import Bar

SECONDS_BETWEEN_LINES = 10.0


class View(Protocol):
    """Where progress and the children's output go. `line` may be called from any thread."""

    def line(self, text: str) -> None:
        """Show one line of output, without its line end."""

    def progress(self, stage: str, fraction: float, detail: str = "") -> None:
        """What is being done, how much of the whole is done (0 to 1), and how much of the stage in words."""

    def done(self) -> None:
        """No more progress will come; lines may."""


def view_for_stderr(console: Console | None = None) -> View:
    """
    Args:
        console: what other things are shown on, if they are.
    """
    return TerminalView(console) if sys.stderr.isatty() else LineView()


class LineView:
    """For files, pipes and log collectors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stages: set[str] = set()
        self._next = 0.0

    def line(self, text: str) -> None:
        # Nobody may be reading any more; the service goes on, and so must the children's output.
        with self._lock, contextlib.suppress(OSError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def progress(self, stage: str, fraction: float, detail: str = "") -> None:
        now = time.monotonic()
        # Of several workers now the one, now the other may be told: what is no news is not said sooner for that.
        if now >= self._next or stage not in self._stages:
            self._stages.add(stage)
            self._next = now + SECONDS_BETWEEN_LINES
            self.line(f"tgq: {stage}: {fraction:.0%}{f' ({detail})' if detail else ''}")

    def done(self) -> None:
        self._stages.clear()


class LinesOnly:
    """Another view without its progress."""

    def __init__(self, view: View) -> None:
        self.line, self.done = view.line, view.done

    def progress(self, stage: str, fraction: float, detail: str = "") -> None:
        pass


class TerminalView:
    """One bar at the bottom of the terminal, lines above it; may be used from several threads."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._lock = threading.Lock()
        self._bar = Bar(self._console)

    def line(self, text: str) -> None:
        # The children's own colours are kept.
        self._console.print(Text.from_ansi(text), soft_wrap=True)

    def progress(self, stage: str, fraction: float, detail: str = "") -> None:
        with self._lock:
            self._bar.show(stage, fraction, 1.0, f"{100 * fraction:>3.0f} % {detail}")

    def done(self) -> None:
        with self._lock:
            self._bar.gone()
