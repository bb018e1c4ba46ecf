"""Puts the frames of one attempt in order. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from common.wire import Accepted, Frame, FrameBody

FRAMES_AHEAD = 4096
"""Frames kept behind a gap; later ones are dropped, because a resend brings them again."""


class FrameOrder:
    """Takes frames as they come and gives back their bodies in order, each once.

    Pub/sub delivers at most once and a resend overlaps what is on its way, so frames are missing, late or doubled. A
    queue returned by the reaper can start the same attempt on a second worker: that worker's `Accepted` opens a new
    count, and the first worker's frames are stale from there on.
    """

    __slots__ = ("_ahead", "attempt", "next_sequence", "worker")

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.worker: str | None = None
        """The worker whose frames count; None before the first frame."""
        self.next_sequence = 0
        self._ahead: dict[int, FrameBody] = {}

    @property
    def gap(self) -> bool:
        """Whether a frame is missing that a later one has overtaken."""
        return bool(self._ahead)

    def push(self, worker: str, frame: Frame) -> Sequence[FrameBody]:
        """Take one frame; returns the bodies that are now in order (none for stale, doubled and early frames)."""
        if frame.attempt != self.attempt:
            return ()
        if worker != self.worker and not self._follow(worker, frame):
            return ()
        sequence = frame.sequence
        if sequence < self.next_sequence:
            return ()
        if sequence > self.next_sequence:
            if len(self._ahead) < FRAMES_AHEAD:
                self._ahead[sequence] = frame.body
            return ()
        self.next_sequence += 1
        if not self._ahead:
            return (frame.body,)
        bodies = [frame.body]
        while (body := self._ahead.pop(self.next_sequence, None)) is not None:
            bodies.append(body)
            self.next_sequence += 1
        return bodies

    def _follow(self, worker: str, frame: Frame) -> bool:
        """Whether the frames of `worker` count from now on."""
        if self.worker is not None:
            if not (frame.sequence == 0 and isinstance(frame.body, Accepted)):
                return False
            self.next_sequence = 0
            self._ahead.clear()
        self.worker = worker
        return True
