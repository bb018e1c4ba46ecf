"""Frames on their way to submitters: numbered, grouped by reply channel, remembered until released. No I/O, no threads."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from common.wire import Cancelled, Failed, Frame, FrameBody, Tokens

KEEP_SECONDS = 60.0
"""Frames of an ended attempt can be asked for again this long, unless its submitter releases them."""
MAX_KEPT_TOKENS = 1_000_000
"""Tokens remembered over all attempts (a frame without tokens counts as one); beyond it the oldest attempts are forgotten,
sent or not: their submitters see a gap that nobody can fill."""
MAX_MESSAGE_FRAMES = 2_048

Key = tuple[str, int]
"""Request and attempt."""


@dataclass(slots=True)
class _Attempt:
    """Every frame of one attempt so far; a frame's index is its sequence."""

    channel: str
    frames: list[Frame] = field(default_factory=list)
    taken: int = 0
    """Frames handed out at least once. Somebody may have these, so they never change again."""
    weight: int = 0
    ended_at: float | None = None


class Outbox:
    """One worker's outgoing frames.

    An attempt's frames are numbered from 0 without a gap, in the order of `add`; tokens that follow tokens of the same child
    still waiting here join their frame, so that falling behind makes frames longer instead of more. `take` hands out what is due, per
    channel; `put_back` returns what could not be sent.
    """

    def __init__(self, *, max_kept: int = MAX_KEPT_TOKENS, max_message: int = MAX_MESSAGE_FRAMES) -> None:
        self._max_kept = max_kept
        self._max_message = max_message
        self._attempts: OrderedDict[Key, _Attempt] = OrderedDict()
        self._keys: dict[str, list[Key]] = {}
        """By request."""
        self._kept = 0
        self._due: dict[str, dict[Key, int]] = {}
        """By channel: the attempts with something to send, and the sequence to send from."""

    @property
    def kept_tokens(self) -> int:
        return self._kept

    def add(self, channel: str, request: str, attempt: int, body: FrameBody, now: float) -> None:
        """Take a frame for a channel; a frame of tokens is the outbox's own from here on.

        Args:
            now: seconds on a monotonic clock.
        """
        key = (request, attempt)
        kept = self._attempts.get(key)
        if kept is None:
            kept = self._attempts[key] = _Attempt(channel)
            self._keys.setdefault(request, []).append(key)
        frames = kept.frames
        if isinstance(body, Tokens):
            weight, last = len(body.tokens) or 1, body.ends
            joins = _joinable(frames, kept.taken, body.child)
        else:
            weight, last = 1, isinstance(body, Failed | Cancelled)
            joins = None
        if isinstance(body, Tokens) and joins is not None:
            waiting = frames[joins].body
            assert isinstance(waiting, Tokens)
            # In place: this frame is nobody else's yet, and while the worker is behind this is all there is to a token.
            waiting.tokens.extend(body.tokens)
            if body.finish is not None:
                joined = Tokens(waiting.offset, waiting.tokens, body.finish, body.child, body.unfinished)
                frames[joins] = Frame(request, attempt, joins, joined)
        else:
            frames.append(Frame(request, attempt, len(frames), body))
            self._queue(key, kept, len(frames) - 1)
        kept.weight += weight
        self._kept += weight
        if last:
            kept.ended_at = now
        while self._kept > self._max_kept and len(self._attempts) > 1:
            self._forget(next(iter(self._attempts)))

    def take(self) -> list[tuple[str, list[Frame]]]:
        """What is due: one entry per channel, more only where a message would grow too long."""
        due, self._due = self._due, {}
        messages = []
        for channel, starts in due.items():
            frames: list[Frame] = []
            for key, start in starts.items():
                kept = self._attempts[key]
                kept.taken = len(kept.frames)
                frames += kept.frames[start:]
            size = self._max_message
            messages += [(channel, frames[first : first + size]) for first in range(0, len(frames), size)]
        return messages

    def put_back(self, messages: list[tuple[str, list[Frame]]]) -> None:
        """These were not sent, or not surely."""
        for _, frames in messages:
            for frame in frames:
                self.resend(frame.request, frame.attempt, frame.sequence)

    def resend(self, request: str, attempt: int, from_sequence: int) -> bool:
        """Queue an attempt's frames from `from_sequence` on again; False when they are not remembered."""
        key = (request, attempt)
        kept = self._attempts.get(key)
        if kept is None:
            return False
        self._queue(key, kept, max(from_sequence, 0))
        return True

    def release(self, request: str) -> None:
        """The submitter has all frames of the request's ended attempts."""
        for key in self._keys.get(request, [])[:]:
            if self._attempts[key].ended_at is not None:
                self._forget(key)

    def drop_channel(self, channel: str) -> None:
        """Nobody listens there any more, and nobody will."""
        for key in [key for key, kept in self._attempts.items() if kept.channel == channel]:
            self._forget(key)

    def sweep(self, now: float) -> None:
        """Forget attempts that ended `KEEP_SECONDS` ago."""
        for key in [
            key
            for key, kept in self._attempts.items()
            if kept.ended_at is not None and now - kept.ended_at > KEEP_SECONDS
        ]:
            self._forget(key)

    def _queue(self, key: Key, kept: _Attempt, start: int) -> None:
        due = self._due.setdefault(kept.channel, {})
        due[key] = min(due.get(key, start), start)

    def _forget(self, key: Key) -> None:
        kept = self._attempts.pop(key)
        keys = self._keys[key[0]]
        keys.remove(key)
        if not keys:
            del self._keys[key[0]]
        self._kept -= kept.weight
        if due := self._due.get(kept.channel):
            due.pop(key, None)


def _joinable(frames: list[Frame], taken: int, child: int) -> int | None:
    """Sequence of the frame not handed out yet that further tokens of a child may join: past no frame that ends one."""
    for sequence in range(len(frames) - 1, taken - 1, -1):
        body = frames[sequence].body
        if not isinstance(body, Tokens) or body.finish is not None:
            return None
        if body.child == child:
            return sequence
    return None
