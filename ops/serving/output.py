"""The output of child processes, line by line."""

from __future__ import annotations

import os
import pty
import threading
from collections.abc import Callable


def open_output(*, terminal: bool) -> tuple[int, int]:
    """A descriptor to read from and one for the child to write to.

    With `terminal` the child sees a terminal, as it would without us in between, and writes for people.
    """
    return pty.openpty() if terminal else os.pipe()


def read_lines(descriptor: int, on_line: Callable[[str], None]) -> threading.Thread:
    """Call `on_line` with each line, without its end, from a thread of its own until all writers are gone.

    The descriptor is closed then.
    """

    def run() -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            rest = b""
            while True:
                try:
                    chunk = stream.read(65536)
                except OSError:  # How the reading end of a pseudo-terminal says that the writers are gone.
                    chunk = b""
                *lines, rest = (rest + (chunk or b"")).split(b"\n")
                for line in lines:
                    on_line(line.decode(errors="replace").rstrip("\r"))
                if not chunk:
                    if rest:
                        on_line(rest.decode(errors="replace"))
                    return

    thread = threading.Thread(target=run, name="output", daemon=True)
    thread.start()
    return thread
