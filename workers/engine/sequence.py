"""One sequence while the engine holds it: its ids, and how far its keys and values are computed."""

from __future__ import annotations

from array import array
from typing import Protocol

from common.wire import Job
from workers.engine.prefix_cache import block_digest


class AdapterVersion(Protocol):
    """What changes the model for one sequence: for good, so that a sequence keeps the version it began with."""

    @property
    def salt(self) -> bytes:
        """Differs between versions: their keys and values must not be shared."""


class Sequence:
    """Scheduling state of one job, or of one child of a job with several.

    What is left to compute is always `len(ids) - computed` tokens from position `computed` on: one token is a decode
    step, several are a chunk of prefill, and a resumed job (`job.generated_ids`) or a preempted sequence is a prefill that
    is a little longer. The key/value slot of position `p` is `blocks[p // block_size] * block_size + p % block_size`.

    Sequences compare and hash by identity.
    """

    __slots__ = (
        "__weakref__",
        "_digests",
        "_waited",
        "_waiting_since",
        "adapter",
        "admitted_at",
        "arrival",
        "blocks",
        "child",
        "computed",
        "ids",
        "job",
        "parent",
        "prompt_known",
        "prompt_length",
        "published",
        "rank",
        "root",
    )

    def __init__(
        self,
        job: Job,
        arrival: int = 0,
        *,
        child: int = 0,
        root: bytes | None = None,
        adapter: AdapterVersion | None = None,
    ) -> None:
        """
        Args:
            job: of this sequence alone (`Job.child`).
            arrival: place in the order of arrival at this engine.
            child: which child of its request.
            root: root of its block digests (`prefix_cache.root_digest`); None keeps it out of the prefix cache.
            adapter: what the model is changed by.
        """
        self.job = job
        self.arrival = arrival
        self.child = child
        self.root = root
        self.adapter = adapter
        self.ids = array("I", job.prompt_ids)
        """Prompt ids, then generated ids."""
        self.ids.extend(job.generated_ids)
        self.prompt_length = len(job.prompt_ids)
        self.prompt_known = 0
        """Prompt tokens whose log probabilities were taken."""
        self.computed = 0
        """Positions from 0 on whose keys and values are in the cache."""
        self.published = 0
        """Blocks from the first on that the prefix cache knows."""
        self.blocks: list[int] = []
        """Cache blocks it holds; empty while it waits."""
        self.parent: Sequence | None = None
        """While it waits: a running sequence that has computed the same prompt."""
        self.rank = int(job.job_class != "interactive")
        """0 goes before 1; a `batch` sequence that has waited long becomes a 0."""
        self._waited = 0.0
        self._waiting_since: float | None = None
        self.admitted_at: float | None = None
        """Monotonic time of the first admission of its request to the running batch."""
        self._digests: list[bytes] = []

    @property
    def generated(self) -> int:
        """Tokens generated so far, over all attempts."""
        return len(self.ids) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Tokens whose keys and values are still to be computed before the next one can be sampled."""
        return len(self.ids) - self.computed

    @property
    def reserved_tokens(self) -> int:
        """Cache positions the sequence may come to need: prompt plus longest answer."""
        return self.job.length

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.job.parameters.prefill_logprobs and self.prompt_known < self.prompt_length

    def wait(self, now: float) -> None:
        """From `now` on (monotonic time, if not before) nothing is computed for it."""
        if self._waiting_since is None:
            self._waiting_since = now

    def go_on(self, now: float) -> None:
        """It has its turn again."""
        self._waited, self._waiting_since = self.waited(now), None

    def waited(self, now: float) -> float:
        """Seconds it has waited in all."""
        return self._waited + (0.0 if self._waiting_since is None else now - self._waiting_since)

    def digests(self, count: int, block_size: int) -> list[bytes]:
        """Digests of its first `count` blocks, which its ids must fill; it must have a root."""
        assert self.root is not None
        known = self._digests
        while len(known) < count:
            start = len(known) * block_size
            known.append(block_digest(known[-1] if known else self.root, self.ids[start : start + block_size]))
        return known[:count]
