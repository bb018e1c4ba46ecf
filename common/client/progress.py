"""What has arrived of a request, over all its attempts. Pure: no I/O, no clock."""

from __future__ import annotations

from common.errors import IncompleteGeneration
from common.wire import Job, Tokens


class TokensMissing(Exception):
    """Tokens came whose predecessors did not."""


class Progress:
    """The ids of each child, and which children have ended: where another attempt would go on.

    Equal positions hold equal tokens, whichever attempt or worker they come from, so each position counts once. Which
    children are left is counted here and not taken from the workers: each knows its own attempt only.
    """

    __slots__ = ("ids", "unfinished")

    def __init__(self, job: Job) -> None:
        siblings = [*job.sibling_ids, *([] for _ in range(job.parameters.children))]
        self.ids = [list(ids) for ids in [job.generated_ids, *siblings][: job.parameters.children]]
        """Generated ids, by child."""
        self.unfinished = set(range(job.parameters.children))
        """Children whose end has not arrived."""

    @property
    def total(self) -> int:
        """Tokens of all children."""
        return sum(map(len, self.ids))

    def take(self, body: Tokens) -> Tokens | None:
        """The part of `body` that is new, None when there is none.

        Raises:
            TokensMissing: tokens before it have not arrived.
            IncompleteGeneration: it is of a child nobody asked for.
        """
        child, finish = body.child, body.finish
        if child >= len(self.ids):
            raise IncompleteGeneration("The worker answered what was not asked", reason="worker")
        ids = self.ids[child]
        known = len(ids) - body.offset
        if known < 0:
            raise TokensMissing
        if known or finish is not None:
            tokens = body.tokens[known:]
            if child not in self.unfinished or not (tokens or finish):
                return None
            if finish is not None:
                self.unfinished.discard(child)
            body = Tokens(len(ids), tokens, finish, child, len(self.unfinished) if finish else body.unfinished)
        elif not body.tokens:
            return None
        ids.extend([token.id for token in body.tokens])
        return body
