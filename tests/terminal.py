"""A program on a terminal of its own, as a person has it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

CTRL_C = "\x03"
CTRL_D = "\x04"


class Terminal:
    """Leaving the block kills what still runs."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            arguments,
            env={**(os.environ if environment is None else environment), "TERM": "xterm", "COLUMNS": "100"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            # Only of a controlling terminal do the keys become signals; one system call is safe beside threads.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        os.close(theirs)
        self.shown = ""
        """Everything so far."""

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def see(self, text: str, seconds: float = 30.0, *, after: int = 0) -> int:
        """Wait until the text is shown behind the first `after` characters; returns where it ends."""
        deadline = time.monotonic() + seconds
        while (found := self.shown.find(text, after)) < 0:
            left = deadline - time.monotonic()
            assert left > 0, f"no {text!r} after {seconds:g} s in {self.shown[after:]!r}"
            assert self._read(left), f"it ended without {text!r}: {self.shown[after:]!r}"
        return found + len(text)

    def end(self, seconds: float = 30.0) -> int:
        """Wait for the end of the program; returns its exit status."""
        deadline = time.monotonic() + seconds
        while self._read(deadline - time.monotonic()):
            assert time.monotonic() < deadline, f"it still runs after {seconds:g} s: {self.shown!r}"
        return self.process.wait(timeout=seconds)

    def _read(self, seconds: float) -> bool:
        """Take what comes within a time; False: nobody will write any more."""
        if not select.select([self._ours], [], [], max(seconds, 0.0))[0]:
            return True
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # How a pseudo-terminal says so.
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
