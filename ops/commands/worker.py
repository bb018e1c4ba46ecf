"""`tgq worker`: one worker with its engine."""

from __future__ import annotations

import sys

from common.logs import configure_logging
from common.model_files import ModelNotFound, check_model
from ops.configuration import Configuration
from ops.options import BAD_USAGE


def run(configuration: Configuration) -> int:
    """Run the worker until it is told to stop; returns its exit status, 2 when there cannot be such a model."""
    try:
        check_model(configuration.settings, weights=True)
    except ModelNotFound as error:
        print(f"tgq: {error}", file=sys.stderr)
        return BAD_USAGE
    from ops.serving.load_view import load_view
    from workers.worker import run_worker

    configure_logging(configuration.settings)
    return run_worker(configuration.settings, load_view(configuration.settings))
