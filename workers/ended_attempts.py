"""Which attempts have ended here: a late delivery of one of them does no work."""

from __future__ import annotations

from collections import OrderedDict

REMEMBERED = 10_000
"""Requests; the oldest are forgotten."""


class EndedAttempts:
    def __init__(self) -> None:
        self._newest: OrderedDict[str, int] = OrderedDict()

    def add(self, request: str, attempt: int) -> None:
        self._newest[request] = attempt
        self._newest.move_to_end(request)
        if len(self._newest) > REMEMBERED:
            self._newest.popitem(last=False)

    def has(self, request: str, attempt: int) -> bool:
        """Whether this attempt or a later one has ended."""
        return self._newest.get(request, 0) >= attempt
