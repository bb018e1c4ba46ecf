"""Steps one after another, or, where the device chooses the tokens, the next one launched before the last is taken in.

A step follows from the one before whatever tokens that one chooses, when it computes the same sequences again, each with
the token chosen for it. What the host then finds out (an end of text, a stop string, a cancelled request) costs one token
computed in vain, which is thrown away. It writes only where its sequence had room, and whoever gets that room next writes
later on the same device; so results are the same with and without. What needs the host first is not launched ahead: an
admission, a grammar, a rule or report that the device does not know, a prefill that goes on, a proposed draft.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from typing import Any, NamedTuple, Protocol, runtime_checkable

from workers.engine.plan import EngineBroken, FloatArray, ModelRunner, Row, StepPlan
from workers.engine.sampler import Choice
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence

log = logging.getLogger(__name__)

MOST_AHEAD = 64
"""Steps in a row that are launched ahead: then the scheduler has its say, so that who waits grows old there."""

Alive = Callable[[Sequence], bool]


class Outcome(NamedTuple):
    """What a step computed."""

    logits: FloatArray
    """As `ModelRunner.forward` gives them, without those of the rows in `choices`."""
    choices: dict[int, Choice]
    """By index of the row: tokens chosen on the device; a negative id says that the scores were not finite."""


class Launched(Protocol):
    """A step that the device computes."""

    plan: StepPlan
    decided: bool
    """Whether it ends with a token for each row, chosen on the device."""

    def take(self) -> Outcome:
        """Wait for it. Raises what `ModelRunner.forward` raises."""


@runtime_checkable
class Launcher(Protocol):
    """A model runner that does not wait for its device."""

    def launch(self, plan: StepPlan, after: Any = None) -> Launched:
        """Start a step.

        Args:
            after: the step before, launched and not taken; tokens it chooses and the host does not know yet are read
                where it leaves them.

        Raises: what `ModelRunner.forward` raises.
        """


class Pipeline:
    """Runs steps. `compute` is one step; `pending` says which one it must be."""

    def __init__(self, runner: ModelRunner, scheduler: Scheduler, alive: Alive, *, ahead: bool) -> None:
        """
        Args:
            alive: whether the engine still has a sequence.
            ahead: launch steps ahead where the runner can.
        """
        self._runner = runner
        self._scheduler = scheduler
        self._alive = alive
        self._ahead = ahead
        self._launched: Launched | None = None
        self._in_a_row = 0

    def pending(self) -> StepPlan | None:
        """The step that is under way, unless nothing of it matters any more."""
        launched = self._launched
        if launched is not None and not any(self._alive(row.sequence) for row in launched.plan.rows):
            launched = self._launched = None
        return None if launched is None else launched.plan

    def compute(self, plan: StepPlan) -> Outcome:
        """Compute a step, the pending one or (which discards that) another. Raises what `ModelRunner.forward` raises."""
        if not isinstance(self._runner, Launcher):
            return Outcome(self._runner.forward(plan), {})
        launched, self._launched = self._launched, None
        if launched is None or launched.plan is not plan:
            launched = self._runner.launch(plan)
        if self._ahead:
            self._launch_next(self._runner, launched)
        try:
            return launched.take()
        except Exception:
            # What was built on it is void.
            self._launched = None
            raise

    def _launch_next(self, runner: Launcher, launched: Launched) -> None:
        self._in_a_row += 1
        plan = None
        if launched.decided and self._in_a_row <= MOST_AHEAD:
            plan = following(launched.plan, self._scheduler, self._alive)
        if plan is None:
            self._in_a_row = 0
            return
        try:
            self._launched = runner.launch(plan, launched)
        except EngineBroken:
            raise
        except Exception:
            # Launched again when its turn comes, it fails again, and then it is said whose fault it is.
            log.debug("a step could not be launched ahead", exc_info=True)


def following(plan: StepPlan, scheduler: Scheduler, alive: Alive) -> StepPlan | None:
    """The step after `plan`, which is under way and gives each row a token; None where the scheduler has to decide."""
    rows = [row for row in plan.rows if alive(row.sequence)]
    if len(rows) + plan.left_out != len(scheduler.running) or scheduler.can_admit():
        return None
    after = []
    for row in rows:
        sequence, position = row.sequence, row.start + row.count
        if position + 1 - sequence.prompt_length >= sequence.job.parameters.max_new_tokens:
            continue  # The token under way is its last.
        missing = scheduler.pool.blocks_for(position + 1) - len(sequence.blocks)
        if missing > 0:
            more = scheduler.pool.allocate(missing)
            if more is None:
                return None
            sequence.blocks.extend(more)
        after.append(Row(sequence, position, 1, 1))
    return StepPlan(after, left_out=plan.left_out) if after else None


def computed(rows: Many[Row], outcome: Outcome) -> Iterator[tuple[Row, FloatArray, Choice | None]]:
    """Each row with its logits, or the token chosen from them.

    A row with a draft comes as rows of one token, as long as the token sampled is the one drafted.
    """
    first = 0
    for number, row in enumerate(rows):
        choice = outcome.choices.get(number)
        count = row.logits if choice is None else 0
        part = outcome.logits[first : first + count]
        first += count
        if not row.draft:
            yield row, part, choice
            continue
        ids = row.sequence.ids
        for index in range(row.count):
            yield Row(row.sequence, row.start + index, 1, 1), part[index : index + 1], None
            drafted = row.draft[index : index + 1]
            if not drafted or len(ids) != row.start + index + 2 or ids[-1] != drafted[0]:
                break
