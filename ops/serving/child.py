"""A process that is kept running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from ops.child_process import signal_group, spawn
from ops.options import BAD_USAGE
from ops.serving.output import open_output, read_lines
from ops.serving.restarts import QUICK_ENDS, Restarts
from ops.serving.view import View

FIRST_STARTS = 3
"""Starts that may fail before a child has ever worked."""
_LINES_KEPT = 20


class ChildFailed(Exception):
    """A child does not start or stay; the message ends with the last lines it wrote."""


class Child:
    """One `tgq` command as a process; started again, ever later, when it ends by itself."""

    def __init__(self, name: str, arguments: Sequence[str], environment: Mapping[str, str], view: View) -> None:
        self.name = name
        self.works = False
        """Set once the service has been ready: from then on the child has more patience."""
        self._arguments = [sys.executable, "-P", "-m", "ops.cli", *arguments]
        self._environment = dict(environment)
        self._view = view
        self._last_lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._process: subprocess.Popen[Any] | None = None
        self._reader: threading.Thread | None = None
        self._started = 0.0
        self._restarts = Restarts()
        self._start_again_at: float | None = None

    def start(self) -> None:
        reading, writing = open_output(terminal=sys.stderr.isatty())
        try:
            self._process = spawn(self._arguments, environment=self._environment, stdout=writing, stderr=writing)
        finally:
            os.close(writing)
        self._reader = read_lines(reading, self._on_line)
        self._started = time.monotonic()
        self._start_again_at = None

    def tend(self) -> None:
        """Look after the process: notice that it ended, start it again when it is time.

        Raises:
            ChildFailed: it has never worked and does not come up, or it ended too often in a row.
        """
        now = time.monotonic()
        if self._start_again_at is not None:
            if now >= self._start_again_at:
                self.start()
            return
        if self._process is None or self._process.poll() is None:
            return
        status = self._process.returncode
        signal_group(self._process, signal.SIGKILL)  # What it started must not meet its successor.
        # Loading may take long: only what has worked has lasted.
        ran = now - self._started if self.works else 0.0
        delay = self._restarts.ended(ran, most=QUICK_ENDS if self.works else FIRST_STARTS)
        if delay is None or (status == BAD_USAGE and not self.works):
            again = " again and again" if self.works else ""
            raise ChildFailed(f"{self.name} {_ending(status)}{again}:\n{self._tail()}")
        self._start_again_at = now + delay
        self._view.line(f"tgq: {self.name} {_ending(status)}; starting it again in {delay:g} s")

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def terminate(self) -> None:
        """Ask the process to finish its work and end."""
        self._start_again_at = None
        if self._process is not None and self.alive:
            # The command alone: it tells its own processes, in its own order.
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process and all of its group at once."""
        self._start_again_at = None
        if self._process is not None:
            signal_group(self._process, signal.SIGKILL)
            self._process.wait()

    def _on_line(self, line: str) -> None:
        self._last_lines.append(line)
        self._view.line(line)

    def _tail(self) -> str:
        if self._reader is not None:
            self._reader.join(timeout=1.0)
        return "\n".join(self._last_lines)


def _ending(status: int) -> str:
    return f"ended with exit status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"
