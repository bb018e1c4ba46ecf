"""How long answers become, to tell how many jobs the engine has room for."""

from __future__ import annotations

UNKNOWN = 2**31
"""Expected of answers while too few were seen: every job counts with the longest it may have."""
SEEN_ENOUGH = 8
MEMORY = 32
"""Answers over which the mean and deviation fade."""
LEAST_MARGIN, LARGEST_MARGIN = 1.0, 16.0


class AnswerLengths:
    """A moving estimate that few answers exceed: mean, plus mean deviation times a margin.

    Jobs ask for far more tokens than they use, and an engine that counts what they ask for stands half empty. One that
    took too many can preempt, but computes again what it gives up; so the margin doubles with every report of
    preemptions and shrinks again slowly.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._mean = self._deviation = 0.0
        self._margin = LEAST_MARGIN
        self._preemptions = 0

    @property
    def expected(self) -> int:
        """Tokens an answer is counted with, if it may have so many."""
        if self._seen < SEEN_ENOUGH:
            return UNKNOWN
        return 1 + int((self._mean + 2 * self._deviation) * self._margin)

    def ended(self, tokens: int) -> None:
        """An answer ended by itself with so many tokens."""
        self._seen += 1
        rate = 1 / min(self._seen, MEMORY)
        if self._seen > 1:
            self._deviation += rate * (abs(tokens - self._mean) - self._deviation)
        self._mean += rate * (tokens - self._mean)

    def preempted(self, total: int) -> None:
        """The engine has preempted `total` sequences since it started."""
        if total > self._preemptions:
            self._margin = min(2 * self._margin, LARGEST_MARGIN)
        else:
            self._margin = max(0.98 * self._margin, LEAST_MARGIN)
        self._preemptions = total
