"""A model without weights that says what its prompt tells it to; for tests of everything around a model.

The last `<<script {json}>>` in the prompt is the script. Its fields:

- `text` or `ids`: what to emit, then end-of-text. `repeat`: how many times (1).
- `first_ms`, `step_ms`: pause before the first token and before each other one, of this sequence alone.
- `raise_at`, `hang_at`, `kill_at`: instead of the token with this index (from 0): fail the request; stop answering for
  ever; SIGKILL the engine process.

Without a script it says one sentence over and over until the limit. Tokens become logits, so that sampling and stopping
rules act on them as on a real model's. The index of the next token is the number of generated ones, so a resumed job
goes on where it was.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Many

import msgspec
import numpy as np

from common.errors import GenerationFailed, InvalidRequest, UnknownAdapter
from common.limits import Limits
from common.settings import SCRIPTED_MODEL, Settings
from common.tokenizer import Tokenizer
from common.wire import ModelCard
from workers.engine.plan import Copy, FloatArray, RequestFault, Row, StepPlan
from workers.engine.sequence import AdapterVersion, Sequence

SENTENCE = " The quick brown fox jumps over the lazy dog."
OPENING = "<<script "
CLOSING = ">>"

_FORCED_LOGIT = 20.0
_BACKGROUND_LOGIT = -10.0
"""Far enough below that a draw at temperature 1 leaves the script once in 10 million tokens or less."""


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON of `<<script {json}>>`."""

    text: str | None = None
    ids: list[int] | None = None
    repeat: int = 1
    first_ms: float = 0.0
    step_ms: float = 0.0
    raise_at: int | None = None
    hang_at: int | None = None
    kill_at: int | None = None


def parse_script(prompt: str) -> Script | None:
    """The last script in a prompt; None when there is none.

    Raises:
        InvalidRequest: there is one that cannot be read; the message says why.
    """
    start = prompt.rfind(OPENING)
    if start < 0:
        return None
    try:
        value, end = json.JSONDecoder().raw_decode(prompt, start + len(OPENING))
        script = msgspec.convert(value, Script)
    except (json.JSONDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise InvalidRequest(f"the script in the prompt cannot be read: {error}") from error
    if not prompt.startswith(CLOSING, end):
        raise InvalidRequest(f"the script in the prompt does not end with `}}{CLOSING}`")
    if script.text is not None and script.ids is not None:
        raise InvalidRequest("the script in the prompt has both `text` and `ids`")
    if script.repeat < 0 or script.first_ms < 0 or script.step_ms < 0:
        raise InvalidRequest("the script in the prompt has a negative `repeat`, `first_ms` or `step_ms`")
    return script


class ScriptedModel:
    """A `ModelRunner` without a model."""

    block_size = 16
    contiguous_blocks = False

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: Limits,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        batch_size = settings.max_batch_size or 64
        room = settings.max_batch_total_tokens or batch_size * limits.max_total_tokens
        self.num_blocks = 1 + max(1, room // self.block_size)
        self.vocab_size = tokenizer.vocab_size
        self.card = ModelCard(
            model_id=SCRIPTED_MODEL,
            dtype="torch.float32",
            device_type="scripted",
            max_total_tokens=limits.max_total_tokens,
            max_batch_total_tokens=(self.num_blocks - 1) * self.block_size,
            max_batch_size=batch_size,
        )
        self._tokenizer = tokenizer
        self._clock = clock
        self._sentence = tokenizer.ids(SENTENCE, add_special_tokens=False)
        self._performances: dict[Sequence, _Performance] = {}
        self._background = _background(self.vocab_size)
        self._logits = np.empty((0, self.vocab_size), dtype=np.float32)
        self._forced: list[tuple[int, int]] = []

    follows = False

    def due(self, sequence: Sequence) -> float:
        return self._performance(sequence).due

    def adapter(self, name: str) -> AdapterVersion:
        raise UnknownAdapter(name, [])

    def refresh(self) -> bool:
        return False

    def copy(self, copies: Many[Copy]) -> None:
        """There are no keys and values."""

    def forward(self, plan: StepPlan) -> FloatArray:
        # Faults first: whoever is left is computed by the next call, with nothing done twice.
        for row in plan.rows:
            if _is_last(row):
                self._performance(row.sequence).fault(row.sequence)
        logits = self._clean_logits(sum(row.logits for row in plan.rows))
        now = self._clock()
        last = -1
        for row in plan.rows:
            last += row.logits
            if _is_last(row):
                performance = self._performance(row.sequence)
                self._forced.append((last, performance.token(row.sequence.generated)))
                performance.due = now + performance.script.step_ms / 1000
        for place in self._forced:
            logits[place] = _FORCED_LOGIT
        return logits

    def release(self, sequence: Sequence) -> None:
        self._performances.pop(sequence, None)

    def _performance(self, sequence: Sequence) -> _Performance:
        performance = self._performances.get(sequence)
        if performance is None:
            performance = self._performances[sequence] = self._begin(sequence)
        return performance

    def _begin(self, sequence: Sequence) -> _Performance:
        prompt = self._tokenizer.decode(sequence.job.prompt_ids)
        try:
            script = parse_script(prompt)
            ids, end = self._lines(script)
        except InvalidRequest as error:
            return _Performance(Script(), [], None, 0.0, error)
        script = script or Script()
        return _Performance(script, ids, end, self._clock() + script.first_ms / 1000)

    def _lines(self, script: Script | None) -> tuple[list[int], int | None]:
        """Ids to emit, and the one to emit ever after; None: the ids over and over."""
        if script is None or (script.text is None and script.ids is None):
            return self._sentence, None
        end = min(self._tokenizer.eos_ids, default=None)
        if end is None:
            raise InvalidRequest("the script in the prompt ends with end-of-text, which this tokenizer does not have")
        ids = script.ids if script.ids is not None else self._tokenizer.ids(script.text or "", add_special_tokens=False)
        if any(not 0 <= token_id < self.vocab_size for token_id in ids):
            raise InvalidRequest(f"the script in the prompt has `ids` that are not between 0 and {self.vocab_size - 1}")
        return ids * script.repeat, end

    def _clean_logits(self, rows: int) -> FloatArray:
        """`rows` rows of background, in memory that is kept: only what the last call set is set back."""
        for row, token_id in self._forced:
            self._logits[row, token_id] = self._background[token_id]
        self._forced.clear()
        if len(self._logits) < rows:
            self._logits = np.tile(self._background, (rows, 1))
        return self._logits[:rows]


class _Performance:
    """One sequence's script and how far it has come."""

    def __init__(
        self, script: Script, ids: list[int], end: int | None, due: float, error: InvalidRequest | None = None
    ) -> None:
        self.script = script
        self.due = due
        """Monotonic time of the next token."""
        self._ids = ids
        self._end = end
        self._error = error

    def token(self, index: int) -> int:
        if self._end is None:
            return self._ids[index % len(self._ids)]
        return self._ids[index] if index < len(self._ids) else self._end

    def fault(self, sequence: Sequence) -> None:
        """Do what the script has in place of the next token."""
        if self._error is not None:
            raise RequestFault(sequence, self._error)
        index, script = sequence.generated, self.script
        if index == script.raise_at:
            raise RequestFault(sequence, GenerationFailed(f"the script raises at token {index}"))
        if index == script.hang_at:
            threading.Event().wait()
        if index == script.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def _is_last(row: Row) -> bool:
    """Whether the next token comes out of this row."""
    return row.start + row.count == len(row.sequence.ids)


def _background(vocab_size: int) -> FloatArray:
    """Low logits, all a little different, the same everywhere."""
    ids = np.arange(vocab_size, dtype=np.uint32)
    spread = (ids * np.uint32(2654435761) >> np.uint32(8)).astype(np.float32) / np.float32(2**24)
    return np.float32(_BACKGROUND_LOGIT) - spread
