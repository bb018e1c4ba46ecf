"""`tgq worker`: one worker with its engine."""

from __future__ import annotations

from common.logs import configure_logging
from ops.configuration import Configuration


def run(configuration: Configuration) -> int:
    """Run the worker until it is told to stop; returns its exit status."""
    from ops.serving.load_view import load_view
    from workers.worker import run_worker

    configure_logging(configuration.settings)
    return run_worker(configuration.settings, load_view(configuration.settings))
