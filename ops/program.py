"""How our programs end."""

from __future__ import annotations

import signal
from collections.abc import Callable


def run_program(program: Callable[[], object]) -> None:
    """Run a whole program, whose exit status is what it ends with.

    While it tidies up, Python gives signals back their default action: one more SIGTERM in that moment would make a death by
    signal of the exit status.
    """
    try:
        program()
    finally:
        for told in (signal.SIGTERM, signal.SIGINT):
            signal.signal(told, signal.SIG_IGN)
