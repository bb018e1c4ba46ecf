"""How much of a model's workers one runner fills: enough that none of them waits for it, and not more."""

from __future__ import annotations

import asyncio
import time
from collections import deque

_FEWEST = 8
"""Sequences that are under way when no worker is there: the first ones to come find work."""
_TURNS = 2
"""Sequences under way for each that the workers run at once: when one ends the next is there already."""
_PATIENCE_SECONDS = 1.0
"""Refusals so close together are one."""


class Window:
    """Of one model; all batches of a runner share it, first come, first served."""

    def __init__(self, most: int) -> None:
        """
        Args:
            most: sequences at most, whatever the workers have room for.
        """
        self._most = most
        self._aim = min(_FEWEST, most)
        self._share = 1.0
        self._crowded_at = 0.0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used = 0
        """Sequences under way."""

    @property
    def limit(self) -> int:
        return max(1, round(self._aim * self._share))

    def aim(self, slots: int) -> None:
        """The model's workers run so many sequences at once."""
        self._aim = min(max(_TURNS * slots, _FEWEST), self._most)
        self._admit()

    def crowded(self) -> None:
        """The queue was full: half of it will do, for now."""
        now = time.monotonic()
        if now - self._crowded_at >= _PATIENCE_SECONDS:
            self._crowded_at = now
            self._share = max(self._share / 2, 1 / self._aim)

    def answered(self) -> None:
        """A sequence went through: there may be room for more, about one for each round of all."""
        self._share = min(1.0, self._share + 1 / (self._aim * self.limit))

    async def enter(self, sequences: int) -> None:
        """Wait for room; a request with more sequences than there is ever room for goes alone."""
        if not self._waiting and self._fits(sequences):
            self.used += sequences
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((sequences, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(sequences)
            raise

    def leave(self, sequences: int) -> None:
        self.used -= sequences
        self._admit()

    def _fits(self, sequences: int) -> bool:
        return not self.used or self.used + sequences <= self.limit

    def _admit(self) -> None:
        while self._waiting:
            sequences, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(sequences):
                    return
                self.used += sequences
                turn.set_result(None)
            self._waiting.popleft()
