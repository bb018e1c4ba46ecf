"""Batches as rows of a table."""

from __future__ import annotations

import time
from collections.abc import Iterable

from common.batches.objects import BatchObject

_HEADINGS = ("ID", "STATUS", "LINES", "DONE", "FAILED", "CREATED", "ENDPOINT", "MODEL")


def rows(batches: Iterable[BatchObject]) -> list[tuple[str, ...]]:
    """Headings, then one row a batch; times are local."""
    return [_HEADINGS, *map(_row, batches)]


def _row(batch: BatchObject) -> tuple[str, ...]:
    counts = batch.request_counts
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(batch.created_at))
    numbers = (counts.total, counts.completed + counts.failed, counts.failed)
    return (batch.id, batch.status, *map(str, numbers), created, batch.endpoint, batch.model or "-")
