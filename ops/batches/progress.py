"""What a person sees of a batch: a bar on a terminal, a line now and then elsewhere. All of it on standard error."""

from __future__ import annotations

import sys
import time
from typing import Protocol

from rich.console import Console

from common.batches.objects import BatchObject
from ops.bar import Bar
from ops.batches.figures import Figures, clock

SECONDS_BETWEEN_LINES = 5.0


class BatchView(Protocol):
    """Where progress goes."""

    def line(self, text: str) -> None:
        """Something to be read."""

    def transfer(self, what: str, done: int, size: int) -> None:
        """Bytes that were sent or received, of how many (0: not known)."""

    def batch(self, batch: BatchObject, figures: Figures) -> None:
        """How far the batch is."""

    def done(self) -> None:
        """No more progress will come."""


def view_for_stderr(console: Console | None = None) -> BatchView:
    """
    Args:
        console: what other things are shown on, if they are.
    """
    return TerminalView(console or Console(stderr=True, highlight=False)) if sys.stderr.isatty() else LineView()


def described(batch: BatchObject, figures: Figures) -> str:
    """How far a batch is, in words."""
    words = [batch.status.replace("_", " ")]
    if figures.total:
        words.append(f"{figures.done} of {figures.total} lines")
    if figures.failed:
        words.append(f"{figures.failed} failed")
    if batch.status == "in_progress":
        words.append(f"{figures.tokens_per_second:.0f} tokens/s")
        if figures.seconds_left is not None:
            words.append(f"{clock(figures.seconds_left)} left")
    return ", ".join(words)


class LineView:
    """For files, pipes and log collectors: each new status, and what is new every few seconds."""

    def __init__(self) -> None:
        self._status = ""
        self._next = 0.0

    def line(self, text: str) -> None:
        print(f"tgq: {text}", file=sys.stderr, flush=True)

    def transfer(self, what: str, done: int, size: int) -> None:
        now = time.monotonic()
        if self._status != what:
            self._status, self._next = what, now + SECONDS_BETWEEN_LINES
        elif now >= self._next and size:
            self._next = now + SECONDS_BETWEEN_LINES
            self.line(f"{what}: {done / size:.0%}")

    def batch(self, batch: BatchObject, figures: Figures) -> None:
        now = time.monotonic()
        if now >= self._next or batch.status != self._status:
            self._status, self._next = batch.status, now + SECONDS_BETWEEN_LINES
            self.line(f"{batch.id}: {described(batch, figures)}")

    def done(self) -> None:
        self._status = ""


class TerminalView:
    """One bar at the bottom of the terminal, lines above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Bar(console)

    def line(self, text: str) -> None:
        self._console.print(f"tgq: {text}", markup=False, soft_wrap=True)

    def transfer(self, what: str, done: int, size: int) -> None:
        self._bar.show(what, done, size or None, f"{done / 1e6:.1f} MB" if done >= 1e5 else "")

    def batch(self, batch: BatchObject, figures: Figures) -> None:
        status, *facts = described(batch, figures).split(", ", 1)
        self._bar.show(status, figures.done, figures.total or None, "".join(facts))

    def done(self) -> None:
        self._bar.gone()
