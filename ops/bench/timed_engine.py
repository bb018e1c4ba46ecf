"""An engine process with the scripted model on a device that takes as long as a GPU with a model of a few billion parameters:
for each step a fixed time for reading the weights, and a little for each token. Used through `TGQ_ENGINE_TARGET`.

As on a GPU, tokens are chosen on the device, and the host is free meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from common.limits import resolve_limits
from common.model_files import find_model
from common.settings import Settings
from common.tokenizer import Tokenizer
from workers.engine import main
from workers.engine.default_model import ensure_default_model
from workers.engine.overlap import Outcome
from workers.engine.plan import ModelRunner, StepPlan
from workers.engine.sampler import Choice
from workers.engine.scripted_model import ScriptedModel

FIXED_SECONDS = 0.020
SECONDS_PER_TOKEN = 0.00003


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step that the device has done at a certain time; see `workers.engine.overlap.Launched`."""

    plan: StepPlan
    decided: bool
    outcome: Outcome
    done_at: float

    def take(self) -> Outcome:
        """Wait for it."""
        time.sleep(max(0.0, self.done_at - time.perf_counter()))
        return self.outcome


class TimedModel(ScriptedModel):
    """Steps are computed one after another, each for as long as its tokens take. For scripts without pauses and faults."""

    _free_at = 0.0

    def launch(self, plan: StepPlan, after: Any = None) -> TimedStep:
        """See `workers.engine.overlap.Launcher`. What the script says next depends on no other step."""
        self._free_at = max(self._free_at, time.perf_counter()) + FIXED_SECONDS + SECONDS_PER_TOKEN * plan.tokens
        choices = {}
        for number, row in enumerate(plan.rows):
            if row.logits:
                index = row.start + row.count - row.sequence.prompt_length
                choices[number] = Choice(self._performance(row.sequence).token(index), 0.0)
        nothing = np.empty((0, self.vocab_size), dtype=np.float32)
        return TimedStep(plan, len(choices) == len(plan.rows), Outcome(nothing, choices), self._free_at)


def load(settings: Settings, progress: Callable[[str, float], None]) -> tuple[ModelRunner, Tokenizer]:
    """See `workers.engine.main.load`."""
    ensure_default_model(settings, progress)
    files = find_model(settings, weights=False)
    tokenizer = Tokenizer(files)
    return TimedModel(tokenizer, resolve_limits(settings, files.context_length), settings), tokenizer


def run(connection: Connection, settings: Settings) -> None:
    """Be the engine process."""
    main.run(connection, settings, load)
