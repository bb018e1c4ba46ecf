"""Frames on their way to submitters: numbered, grouped by reply channel, remembered until released. No I/O, no threads."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from common.wire import Cancelled, Failed, Frame, FrameBody, Tokens

KEEP_SECONDS = 60.0
"""Frames of an ended attempt can be asked for again this long, unless its submitter releases them."""
MAX_KEPT_FRAMES = 400_000
"""Frames remembered over all attempts; beyond it the oldest attempts are forgotten."""
MAX_UNSENT_FRAMES = 50_000
"""Frames waiting for one channel while Redis is away. The oldest beyond it are dropped: their submitter sees the gap
and asks again."""
MAX_MESSAGE_FRAMES = 2_048


@dataclass(slots=True)
class _Sent:
    """Every frame of one attempt so far; a frame's index is its sequence."""

    channel: str
    frames: list[Frame] = field(default_factory=list)
    ended_at: float | None = None


class Outbox:
    """One worker's outgoing frames.

    An attempt's frames are numbered from 0 without a gap, in the order of `add`. `take` hands out what is due, per
    channel; `put_back` returns what could not be sent, in front of anything newer.
    """

    def __init__(
        self,
        *,
        max_kept: int = MAX_KEPT_FRAMES,
        max_unsent: int = MAX_UNSENT_FRAMES,
        max_message: int = MAX_MESSAGE_FRAMES,
    ) -> None:
        self._max_kept = max_kept
        self._max_unsent = max_unsent
        self._max_message = max_message
        self._sent: OrderedDict[tuple[str, int], _Sent] = OrderedDict()
        self._kept = 0
        self._due: dict[str, list[Frame]] = {}

    @property
    def kept_frames(self) -> int:
        return self._kept

    def add(self, channel: str, request: str, attempt: int, body: FrameBody, now: float) -> None:
        """Number a frame and queue it for its channel.

        Args:
            now: seconds on a monotonic clock.
        """
        sent = self._sent.get((request, attempt))
        if sent is None:
            sent = self._sent[request, attempt] = _Sent(channel)
        frame = Frame(request, attempt, len(sent.frames), body)
        sent.frames.append(frame)
        self._kept += 1
        if _is_last(body):
            sent.ended_at = now
        self._queue(channel, [frame])
        while self._kept > self._max_kept and len(self._sent) > 1:
            self._forget(next(iter(self._sent)))

    def take(self) -> list[tuple[str, list[Frame]]]:
        """What is due: one entry per channel, more only where a message would grow too long."""
        due, self._due = self._due, {}
        size = self._max_message
        return [
            (channel, frames[start : start + size])
            for channel, frames in due.items()
            for start in range(0, len(frames), size)
        ]

    def put_back(self, messages: list[tuple[str, list[Frame]]]) -> None:
        """These were not sent."""
        newer, self._due = self._due, {}
        for channel, frames in messages:
            self._queue(channel, frames)
        for channel, frames in newer.items():
            self._queue(channel, frames)

    def resend(self, request: str, attempt: int, from_sequence: int) -> bool:
        """Queue an attempt's frames from `from_sequence` on again; False when they are not remembered."""
        sent = self._sent.get((request, attempt))
        if sent is None:
            return False
        self._queue(sent.channel, sent.frames[max(from_sequence, 0) :])
        return True

    def release(self, request: str) -> None:
        """The submitter has all frames of the request's ended attempts."""
        for key in [key for key in self._sent if key[0] == request]:
            if self._sent[key].ended_at is not None:
                self._forget(key)

    def drop_channel(self, channel: str) -> None:
        """Nobody listens there any more, and nobody will."""
        self._due.pop(channel, None)
        for key in [key for key, sent in self._sent.items() if sent.channel == channel]:
            self._forget(key)

    def sweep(self, now: float) -> None:
        """Forget attempts that ended `KEEP_SECONDS` ago."""
        for key in [
            key for key, sent in self._sent.items() if sent.ended_at is not None and now - sent.ended_at > KEEP_SECONDS
        ]:
            self._forget(key)

    def _queue(self, channel: str, frames: list[Frame]) -> None:
        due = self._due.setdefault(channel, [])
        due.extend(frames)
        if len(due) > self._max_unsent:
            del due[: len(due) - self._max_unsent]

    def _forget(self, key: tuple[str, int]) -> None:
        self._kept -= len(self._sent.pop(key).frames)


def _is_last(body: FrameBody) -> bool:
    match body:
        case Failed() | Cancelled():
            return True
        case Tokens(finish=finish):
            return finish is not None
        case _:
            return False
