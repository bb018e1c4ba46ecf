"""What may become of a batch."""

from __future__ import annotations

from typing import get_args

import pytest

from common.batches.objects import OPEN_STATUSES, BatchObject, BatchStatus
from common.batches.transitions import CANCELLABLE, NEXT, IllegalTransition, changed

STATUSES: tuple[BatchStatus, ...] = get_args(BatchStatus)


def batch(status: BatchStatus) -> BatchObject:
    return BatchObject(
        id="batch_1",
        endpoint="/v1/completions",
        input_file_id="file-1",
        completion_window="24h",
        created_at=1,
        status=status,
    )


@pytest.mark.parametrize("old", STATUSES)
@pytest.mark.parametrize("new", STATUSES)
def test_every_pair(old: BatchStatus, new: BatchStatus) -> None:
    if old == new:
        assert changed(batch(old), 7, status=new) == batch(old)
    elif new in NEXT[old]:
        after = changed(batch(old), 7, status=new)
        assert (after.status, getattr(after, f"{new}_at")) == (new, 7)
        assert after.created_at == 1
    else:
        with pytest.raises(IllegalTransition, match=f"{old} cannot become {new}"):
            changed(batch(old), 7, status=new)


def test_open_batches_can_always_end_and_others_never_change() -> None:
    assert set(NEXT) == set(STATUSES)
    for status in STATUSES:
        assert (status in OPEN_STATUSES) == bool(NEXT[status]) == batch(status).open
        assert ("failed" in NEXT[status]) == (status in OPEN_STATUSES)
        assert ("cancelling" in NEXT[status]) == (status in CANCELLABLE)


def test_other_fields_change_with_it_or_alone() -> None:
    after = changed(batch("validating"), 7, status="in_progress", model="m")
    assert (after.model, after.in_progress_at) == ("m", 7)
    assert changed(after, 9, model="n").in_progress_at == 7
