"""One engine step as plain data: what the scheduler decided and what a model runner computes. No torch here."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from common.errors import TgqError
from common.wire import ModelCard
from workers.engine.sequence import AdapterVersion, Sequence

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's share of a step: `count` of its tokens from position `start` on.

    `count` is 1 for decode and more for a chunk of prefill; both are the same work.
    """

    sequence: Sequence
    start: int
    count: int
    logits: int
    """How many of the last tokens need logits: 0 (prefill goes on), 1 (a token will be sampled), or `count` (prompt logprobs, a draft)."""
    draft: tuple[int, ...] = ()
    """Ids proposed to follow the sequence's own: the last of the `count` tokens, computed in case they turn out right."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The content of one block of the key/value cache that another one is to have."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    rows: list[Row]
    copies: list[Copy] = field(default_factory=list)
    """To be made before the rows are computed, all sources read before any target is written."""
    left_out: int = 0
    """Running `batch` sequences that wait for a step with more room."""

    @property
    def tokens(self) -> int:
        return sum(row.count for row in self.rows)


class RequestFault(Exception):
    """A forward failed because of one sequence; the others of the step are not at fault."""

    def __init__(self, sequence: Sequence, error: TgqError, *, retryable: bool = False) -> None:
        """
        Args:
            sequence: the one at fault.
            error: what its submitter is told.
            retryable: another attempt may succeed elsewhere.
        """
        super().__init__(error.message)
        self.sequence = sequence
        self.error = error
        self.retryable = retryable


class EngineBroken(Exception):
    """The device is unusable; the engine process must leave, its jobs go on elsewhere."""


class ModelRunner(Protocol):
    """Computes logits. Implemented by the transformers runner and by the scripted one."""

    card: ModelCard
    vocab_size: int
    """Width of a row of logits."""
    block_size: int
    """Tokens per block of the key/value cache."""
    num_blocks: int
    """Blocks of the cache, dummy block 0 included."""
    contiguous_blocks: bool
    """Whether a sequence's blocks must have consecutive ids, in ascending order."""

    follows: bool
    """Whether `refresh` can ever find anything."""

    def due(self, sequence: Sequence) -> float:
        """Monotonic time before which the sequence must not be scheduled (0: at any time). The scripted model's delays."""

    def adapter(self, name: str) -> AdapterVersion:
        """The newest version of an adapter.

        Raises:
            InvalidRequest: there is none of that name.
        """

    def refresh(self) -> bool:
        """Follow adapters that come and go, without waiting; returns whether `card` has changed. Called every second."""

    def copy(self, copies: Many[Copy]) -> None:
        """Copy keys and values from block to block, all sources read before any target is written."""

    def forward(self, plan: StepPlan) -> FloatArray:
        """Write the keys and values of the planned tokens and compute logits.

        Returns:
            float32 `[sum(row.logits for row in plan.rows), vocab_size]`, rows in plan order.

        The plan's copies are made already. The array may be reused by the next call.

        Raises:
            RequestFault: one sequence is at fault; nothing was computed that a second call without it would not repeat.
            EngineBroken: the device is unusable.
        """

    def release(self, sequence: Sequence) -> None:
        """Forget what is kept for a sequence that left (its KV blocks are freed by the scheduler)."""
