"""One sequence while the engine holds it: its ids, and how far its keys and values are computed."""

from __future__ import annotations

from array import array

from common.wire import Job


class Sequence:
    """Scheduling state of one job.

    What is left to compute is always `len(ids) - computed` tokens from position `computed` on: one token is a decode
    step, several are a chunk of prefill, and a resumed job (`job.generated_ids`) is a prefill that is a little longer.
    The key/value slot of position `p` is `blocks[p // block_size] * block_size + p % block_size`.

    Sequences compare and hash by identity.
    """

    __slots__ = ("admitted_at", "arrival", "blocks", "computed", "ids", "job", "prompt_length")

    def __init__(self, job: Job, arrival: int = 0) -> None:
        self.job = job
        self.arrival = arrival
        """Place in the order of arrival at this engine."""
        self.ids = array("I", job.prompt_ids)
        """Prompt ids, then generated ids."""
        self.ids.extend(job.generated_ids)
        self.prompt_length = len(job.prompt_ids)
        self.computed = 0
        """Positions from 0 on whose keys and values are in the cache."""
        self.blocks: list[int] = []
        """Cache blocks reserved for the whole sequence; empty while it waits."""
        self.admitted_at: float | None = None
        """Monotonic time of admission to the running batch."""

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
        return self.prompt_length + self.job.parameters.max_new_tokens
