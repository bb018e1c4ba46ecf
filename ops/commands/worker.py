"""`tgq worker`: one worker with its engine."""

from __future__ import annotations

from ops.configuration import Configuration


def run(configuration: Configuration) -> int:
    """Run the worker until it is told to stop; returns its exit status."""
    from workers.worker import run_worker

    return run_worker(configuration.settings)
