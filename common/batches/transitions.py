"""Which state of a batch may follow which, and the times that are noted on the way."""

from __future__ import annotations

from typing import Any

import msgspec

from common.batches.objects import BatchObject, BatchStatus

NEXT: dict[BatchStatus, frozenset[BatchStatus]] = {
    "validating": frozenset(("in_progress", "cancelling", "expired", "failed")),
    "in_progress": frozenset(("finalizing", "cancelling", "expired", "failed")),
    "finalizing": frozenset(("completed", "expired", "failed")),
    "cancelling": frozenset(("cancelled", "failed")),
    "completed": frozenset(),
    "failed": frozenset(),
    "expired": frozenset(),
    "cancelled": frozenset(),
}
CANCELLABLE: frozenset[BatchStatus] = frozenset(("validating", "in_progress"))
"""While its results are put together a batch cannot be stopped any more."""


class IllegalTransition(Exception):
    """A batch does not go from one of these states to the other."""

    def __init__(self, old: BatchStatus, new: BatchStatus) -> None:
        self.old, self.new = old, new
        super().__init__(f"a batch that is {old} cannot become {new}")


def changed(batch: BatchObject, now: int, **changes: Any) -> BatchObject:
    """The batch with some fields changed, and the time noted where its status is among them.

    Args:
        now: Unix seconds.

    Raises:
        IllegalTransition: its status cannot become that; the status it has is no change, and always allowed.
    """
    status: BatchStatus = changes.get("status", batch.status)
    if status != batch.status:
        if status not in NEXT[batch.status]:
            raise IllegalTransition(batch.status, status)
        changes[f"{status}_at"] = now
    return msgspec.structs.replace(batch, **changes)
