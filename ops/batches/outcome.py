"""What came of a batch: in words, and as an exit status."""

from __future__ import annotations

from common.batches.objects import BatchObject
from ops.batches.progress import BatchView

DONE, FAILED, WITH_FAILED_LINES, INTERRUPTED = 0, 1, 3, 130
_ERRORS_SHOWN = 10


def told(batch: BatchObject, view: BatchView) -> int:
    """Tell people how a batch ended; returns the exit status that tells programs."""
    for line in outcome(batch):
        view.line(line)
    if batch.status != "completed":
        return FAILED
    return WITH_FAILED_LINES if batch.request_counts.failed else DONE


def outcome(batch: BatchObject) -> list[str]:
    """What came of a batch, line by line for people."""
    counts = batch.request_counts
    took = _seconds(batch)
    facts = [f"{counts.completed} of {counts.total} lines answered" if counts.total else "no line was run"]
    if counts.failed:
        facts.append(f"{counts.failed} failed")
    if batch.usage is not None and batch.usage.output_tokens:
        rate = f" ({batch.usage.output_tokens / took:.0f} tokens/s)" if took else ""
        facts.append(f"{batch.usage.output_tokens} tokens{rate}")
    lines = [f"{batch.id}: {batch.status}, {', '.join(facts)}"]
    errors = batch.errors.data if batch.errors is not None else []
    lines += [f"{f'line {e.line}: ' if e.line else ''}{e.message} ({e.code})" for e in errors[:_ERRORS_SHOWN]]
    if len(errors) > _ERRORS_SHOWN:
        lines.append(f"and {len(errors) - _ERRORS_SHOWN} more")
    return lines


def _seconds(batch: BatchObject) -> int:
    ends = (batch.finalizing_at, batch.completed_at, batch.expired_at, batch.cancelled_at, batch.failed_at)
    end = next((at for at in ends if at is not None), None)
    return end - batch.in_progress_at if end is not None and batch.in_progress_at is not None else 0
