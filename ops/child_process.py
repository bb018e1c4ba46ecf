"""Starting child processes that cannot outlive this one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

PR_SET_PDEATHSIG = 1

# Linux sends the parent-death signal when the *thread* that forked ends. One thread, alive as long as the process, forks
# every child, so that a child started from a short-lived thread is not killed with that thread.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawn")
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process (SIGKILL) as soon as its parent is gone; does nothing where that is unknown.

    Args:
        parent: process id of the parent. When it is gone already, this process exits at once.
    """
    if _libc is None:
        return
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _before_exec(parent: int) -> Callable[[], None]:
    def run() -> None:
        die_with_parent(parent)

    return run


def spawn(
    arguments: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    stdin: int | IO[Any] | None = subprocess.DEVNULL,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    text: bool = False,
) -> subprocess.Popen[Any]:
    """Start a program in a process group of its own, so that a Ctrl-C on the terminal does not reach it behind our back.

    Raises:
        OSError: the program cannot be started.
    """
    return _spawner.submit(
        subprocess.Popen,
        [str(argument) for argument in arguments],
        env=environment,
        cwd=directory,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=text,
        process_group=0,
        preexec_fn=_before_exec(os.getpid()),
    ).result()


def signal_group(process: subprocess.Popen[Any], signal_number: int) -> None:
    """Signal a spawned process and everything in its group; nothing happens when all are gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal_number)
