"""Progress on standard error: one line that changes on a terminal, a line for each run elsewhere.

A line is written at once and seldom: what draws on a terminal takes time from the clocks of the streams.
"""

from __future__ import annotations

import shutil
import sys

from ops.bench.serve.figures import Run


class LineView:
    """For files, pipes and log collectors."""

    def __init__(self) -> None:
        self._what = ""

    def begin(self, what: str, expected: int | None) -> None:
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

    def begin(self, what: str, expected: int | None) -> None:
        super().begin(what, expected)
        self._expected = expected
        self.progress(0, 0, 0)

    def progress(self, answered: int, failed: int, under_way: int) -> None:
        of = f" of {self._expected}" if self._expected is not None else ""
        failures = f", {failed} failed" if failed else ""
        self._write(f"{self._what}: {answered + failed}{of} done{failures}, {under_way} under way")

    def end(self, run: Run | None) -> None:
        self._write("")
        super().end(run)

    def _write(self, text: str) -> None:
        # A longer line would wrap, and the next one would leave a part of it standing.
        sys.stderr.write(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()


def view_for_stderr() -> LineView:
    return TerminalView() if sys.stderr.isatty() else LineView()


def summary(run: Run) -> str:
    """One run in words."""
    failed = run.failures.total()
    words = [f"{run.completed} completed", *([f"{failed} failed"] if failed else [])]
    words += [f"{run.output_tokens / run.seconds:.1f} tokens/s", f"{run.seconds:.1f} s"]
    return ", ".join(words)
