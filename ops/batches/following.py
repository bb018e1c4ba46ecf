"""Following a batch until its end."""

from __future__ import annotations

import time
from collections.abc import Callable

from common.batches.objects import BatchObject
from ops.batches.client import BatchClient
from ops.batches.figures import Figures
from ops.batches.progress import BatchView
from ops.service_client import ServiceError

POLL_SECONDS = 0.5
PATIENCE = 60.0
"""Seconds a service may be away meanwhile: batches outlive the restart of a web node."""
RUNNER_SECONDS = 10.0
"""After so many in which nothing is seen of a runner, people are told of runners."""


def follow(
    client: BatchClient, batch_id: str, view: BatchView, *, pause: Callable[[float], None] = time.sleep
) -> BatchObject:
    """Show how a batch goes; returns it when it has come to its end.

    Args:
        pause: waits so many seconds; whatever it raises ends the following.

    Raises:
        ServiceError: there is no such batch, or nobody answers for `PATIENCE` seconds.
    """
    figures = Figures()
    began = heard = time.monotonic()
    hinted = False
    while True:
        now = time.monotonic()
        try:
            batch = client.batch(batch_id)
        except ServiceError as error:
            if not error.passing or now - heard > PATIENCE:
                raise
        else:
            heard = now
            figures.see(batch, now)
            view.batch(batch, figures)
            if not batch.open:
                return batch
            if batch.status == "validating" and not hinted and now - began >= RUNNER_SECONDS:
                hinted = True
                view.line(
                    f"{batch_id}: still validating; unless its file is large, no batch runner takes it: "
                    "`tgq batch-worker` starts one"
                )
        pause(POLL_SECONDS)
