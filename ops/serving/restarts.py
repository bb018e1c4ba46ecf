"""When a part that ended is started again: at once, then ever later, and not for ever."""

from __future__ import annotations

LONGEST_DELAY = 30.0
LASTING_SECONDS = 60.0
"""A part that ran this long starts again at once when it ends, whatever happened before."""
QUICK_ENDS = 8
"""Ends in a row, each sooner than that, after which a part is given up: about two minutes."""


class Restarts:
    """Of one part."""

    def __init__(self) -> None:
        self._quick_ends = 0

    def ended(self, ran: float, *, most: int = QUICK_ENDS) -> float | None:
        """The part has ended after `ran` seconds; returns those after which to start it again, None for not again.

        Args:
            most: quick ends in a row after which it is given up.
        """
        self._quick_ends = 1 if ran > LASTING_SECONDS else self._quick_ends + 1
        if self._quick_ends >= most:
            return None
        return 0.0 if self._quick_ends == 1 else min(LONGEST_DELAY, 0.5 * 2.0**self._quick_ends)
