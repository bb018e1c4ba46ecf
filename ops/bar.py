"""One bar at the bottom of a terminal for what is being done, as long as that takes."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Bar:
    """Not for several threads at once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def show(self, what: str, done: float, total: float | None, facts: str) -> None:
        """
        Args:
            total: that `done` comes to in the end; None: not known.
            facts: stand behind the bar.
        """
        if self._progress is None:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[facts]}"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._task = self._progress.add_task(what, total=total, facts=facts)
            self._progress.start()
        self._progress.update(self._task, description=what, completed=done, total=total, facts=facts)

    def gone(self) -> None:
        """Take it off the terminal; `show` brings another one."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
