"""When something was heard of a request, and when to ask. Pure: monotonic times are passed in."""

from __future__ import annotations

ANSWER_SECONDS = 5.0
"""A worker that does not send missing frames again in this time (with Redis connected) no longer has them."""
ASK_SECONDS = 1.0
"""Missing frames are asked for again after this time ..."""
SILENCE_ASK_SECONDS = 5.0
"""... and the frames that may have been lost at the end of what arrived, when nothing comes, after this time."""


class Hearing:
    """What is known of the frames of one attempt that do not come. A moment is 0 when there is none."""

    __slots__ = ("_asked_at", "_gap_since", "_missed_at", "_unanswered_since", "progress_at")

    def __init__(self, now: float) -> None:
        self.progress_at = now
        """When the last frame came that was in order and new."""
        self._asked_at = self._gap_since = self._missed_at = self._unanswered_since = 0.0

    def answered(self) -> None:
        """A frame came that was not new: its worker has the attempt."""
        self._unanswered_since = 0.0

    def progressed(self, now: float) -> None:
        """A frame came that was in order and new; others may be missing behind it."""
        self.progress_at = now
        self._gap_since = self._missed_at = self._unanswered_since = 0.0

    def gap(self, now: float) -> bool:
        """A frame is missing behind the last one in order; returns whether that is news."""
        news = not self._gap_since
        if news:
            self._gap_since = now
        return news

    def missed(self, now: float) -> None:
        """Nothing could be heard until now."""
        self._missed_at = now
        self._unanswered_since = 0.0
        if self._gap_since:
            self._gap_since = now

    def asked(self, now: float, *, expects_answer: bool) -> None:
        """The missing frames, and the one before, are asked for."""
        self._asked_at = now
        if expects_answer and not self._unanswered_since:
            self._unanswered_since = now

    def paused(self, seconds: float) -> None:
        """This process stood still: that was no silence."""
        self.progress_at += seconds
        if self._gap_since:
            self._gap_since += seconds
        if self._unanswered_since:
            self._unanswered_since += seconds

    def question_due(self, now: float, *, accepted: bool) -> bool:
        """Whether to ask for frames that may be missing."""
        if not (accepted or self._missed_at):
            return False
        urgent = self._gap_since or (self._missed_at and now - self._missed_at < ANSWER_SECONDS)
        return now - max(self.progress_at, self._asked_at) >= (ASK_SECONDS if urgent else SILENCE_ASK_SECONDS)

    def unanswered(self, now: float) -> bool:
        """Whether the worker has had its time to answer, or to close a gap, and did not."""
        asked = min(self._gap_since or now, self._unanswered_since or now)
        return now - asked > ANSWER_SECONDS
