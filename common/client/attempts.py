"""The attempts of one request. Pure: no I/O, no clock."""

from __future__ import annotations

import msgspec

from common.client.progress import Progress
from common.wire import Job

FRUITLESS_ATTEMPTS = 20
"""Attempts in a row that may bring no token, without anybody's fault, before the request is given up."""
MOST_LOSSES = 12
"""Workers that may be lost with one request, whatever they brought: one that ends each of them a few tokens later."""


class Attempts:
    """Which attempt is the newest, and what became of those before."""

    __slots__ = (
        "_fruitless",
        "_last_loss",
        "_lost",
        "_max_attempts",
        "_progress",
        "_tokens_before",
        "forgets",
        "job",
        "losses",
    )

    def __init__(self, job: Job, progress: Progress, max_attempts: int) -> None:
        self.job = job
        """The newest attempt."""
        self.losses: list[str] = []
        """`{attempt}:{worker}` of those that count against the request, since it last got on."""
        self.forgets = False
        """Whether the newest attempt got on, so that losses before it count no more, also those that others know of."""
        self._progress = progress
        self._max_attempts = max_attempts
        self._last_loss = ""
        self._lost = self._fruitless = 0
        self._tokens_before = progress.total

    def lost(self, worker: str | None, why: str, *, counts: bool) -> None:
        """The newest attempt came to nothing.

        Args:
            worker: who ran it, None when nobody did.
            why: completes "because ...".
            counts: the request may be the cause.
        """
        self._last_loss = why
        tokens = self._progress.total
        self.forgets = tokens > self._tokens_before
        self._tokens_before = tokens
        if self.forgets:
            # What ends its worker at some token ends the next one at the same.
            self.losses.clear()
            self._fruitless = 0
        else:
            self._fruitless += 1
        if counts and worker is not None:
            self._lost += 1
            self.losses.append(f"{self.job.attempt}:{worker}")

    @property
    def exhausted(self) -> bool:
        """Whether so many attempts came to nothing that there is no point in another, whoever is at fault."""
        return self._fruitless >= FRUITLESS_ATTEMPTS or self._lost >= MOST_LOSSES

    @property
    def pause(self) -> float:
        """Seconds before the next attempt: whatever ends attempts at once is not fed with more at full speed."""
        return 0.0 if self._fruitless < 2 else min(0.1 * 2 ** (self._fruitless - 2), 1.0)

    @property
    def epitaph(self) -> str:
        """Why the request is given up."""
        lost = max(self._lost, self._fruitless) if self.exhausted else self._max_attempts
        return (
            f"given up after {lost} lost {'attempt' if lost == 1 else 'attempts'}, the last because {self._last_loss}"
        )

    def next(self, deadline: float) -> Job:
        """The next attempt, from the tokens so far; becomes the newest.

        Args:
            deadline: Unix seconds by which it must have started.
        """
        ids, *siblings = [ids.copy() for ids in self._progress.ids]
        self.job = msgspec.structs.replace(
            self.job, attempt=self.job.attempt + 1, generated_ids=ids, sibling_ids=siblings, deadline=deadline
        )
        return self.job
