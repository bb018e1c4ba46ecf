"""What a client counts of lost attempts; a web process shows the numbers as metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal

Cause = Literal[
    "worker_lost", "worker_failed", "handed_over", "stalled", "frames_lost", "not_queued", "cancelled", "resumed"
]
"""Why a request was sent again: its worker's heartbeat is gone; its engine or worker failed and said so; the worker let it
go on purpose; nothing came for `stall_timeout`; frames are missing that the worker does not send again; it was in no queue
and with no worker; a worker cancelled what nobody had cancelled; its client came to another process to go on with it."""


@dataclass(slots=True)
class ClientCounters:
    """Running totals of one `GenerationClient`."""

    resent: Counter[Cause] = field(default_factory=Counter)
    """Requests sent again, by cause; a request counts once for each attempt after its first."""
    given_up: int = 0
    """Requests that ended because too many of their attempts were lost."""
    stale_frames: int = 0
    """Frames that came from attempts nobody waits for any more."""

    def copy(self) -> ClientCounters:
        return replace(self, resent=self.resent.copy())
