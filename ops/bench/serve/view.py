"""Progress on standard error: one line that changes on a terminal, a line for each run elsewhere.

A line is written at once and seldom: what draws on a terminal takes time from the clocks of the streams.
"""

from __future__ import annotations

import shutil
import sys
import time

from ops.bench.serve.figures import Run


class LineView:
    """For files, pipes and log collectors."""

    def __init__(self) -> None:
        self._what = ""

    def begin(self, what: str, expected: int | None, seconds: float | None) -> None:
        self._what = what

    def progress(self, answered: int, failed: int, under_way: int) -> None:
        """A line for each run is enough."""

    def end(self, run: Run | None) -> None:
        if run is not None:
            print(f"tgq: {self._what}: {summary(run)}", file=sys.stderr, flush=True)


class TerminalView(LineView):
    """For people who wait."""

    def __init__(self) -> None:
        super().__init__()
        self._expected: int | None = None
        self._seconds: float | None = None
        self._began = 0.0

    def begin(self, what: str, expected: int | None, seconds: float | None) -> None:
        super().begin(what, expected, seconds)
        self._expected, self._seconds, self._began = expected, seconds, time.monotonic()
        self.progress(0, 0, 0)

    def progress(self, answered: int, failed: int, under_way: int) -> None:
        of = f" of {self._expected}" if self._expected is not None else ""
        failures = f", {failed} failed" if failed else ""
        left = time_left(answered + failed, self._expected, time.monotonic() - self._began, self._seconds)
        about = f", about {left:.0f} s left" if left else ""
        self._write(f"{self._what}: {answered + failed}{of} done{failures}, {under_way} under way{about}")

    def end(self, run: Run | None) -> None:
        self._write("")
        super().end(run)

    def _write(self, text: str) -> None:
        # A longer line would wrap, and the next one would leave a part of it standing.
        sys.stderr.write(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()


def view_for_stderr() -> LineView:
    return TerminalView() if sys.stderr.isatty() else LineView()


def time_left(done: int, expected: int | None, passed: float, seconds: float | None) -> float | None:
    """Seconds until the last request is sent or answered, by the pace so far; None while nothing tells.

    Args:
        expected: requests of the run, if they are counted.
        passed: seconds since it began.
        seconds: of sending, if they are.
    """
    by_count = (expected - done) * passed / done if expected is not None and done else None
    by_clock = max(0.0, seconds - passed) if seconds is not None else None
    return min((left for left in (by_count, by_clock) if left is not None), default=None)


def summary(run: Run) -> str:
    """One run in words."""
    failed = run.failures.total()
    words = [f"{run.completed} completed", *([f"{failed} failed"] if failed else [])]
    words += [f"{run.output_tokens / run.seconds:.1f} tokens/s", f"{run.seconds:.1f} s"]
    return ", ".join(words)
