"""The engine: jobs in, one step after another, events out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from common.errors import DeadlineExceeded, GenerationFailed, InvalidRequest, TgqError
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import (
    Accepted,
    Cancelled,
    EngineStats,
    Failed,
    Finish,
    FrameBody,
    Job,
    JobEvent,
    PrefillToken,
    Tokens,
)
from workers.engine.answer import Answer
from workers.engine.block_pool import BlockPool
from workers.engine.job_check import check_job
from workers.engine.plan import EngineBroken, FloatArray, ModelRunner, RequestFault, Row, StepPlan
from workers.engine.sampler import Choice, Sampler
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence
from workers.engine.stats import Method, StatsRecorder

log = logging.getLogger(__name__)

DEFAULT_PREFILL_TOKENS = {"cpu": 128}
"""Prompt tokens per step at most, by device; 4096 elsewhere."""


@dataclass(frozen=True, slots=True)
class _Request:
    sequence: Sequence
    answer: Answer


class Engine:
    """Runs jobs on a model, many at once, one step at a time. Not for several threads.

    Every job added ends in exactly one last event: `Tokens` with `finish`, `Failed` or `Cancelled`. Of the attempts of one
    request only the newest runs: an older one ends as `Cancelled` (whichever comes first), the same one again is `Accepted`
    again and changes nothing.
    """

    def __init__(
        self,
        runner: ModelRunner,
        tokenizer: Tokenizer,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        card = runner.card
        self._runner = runner
        self._tokenizer = tokenizer
        self._clock = clock
        self._unix_time = unix_time
        self._sampler = Sampler(runner.vocab_size)
        self._scheduler = Scheduler(
            BlockPool(runner.num_blocks, runner.block_size, contiguous=runner.contiguous_blocks),
            max_batch_size=card.max_batch_size,
            max_prefill_tokens=settings.max_batch_prefill_tokens or DEFAULT_PREFILL_TOKENS.get(card.device_type, 4096),
        )
        self._requests: dict[str, _Request] = {}
        self._events: list[JobEvent] = []
        self._arrivals = 0
        self._recorder = StatsRecorder()

    # -- jobs

    def add(self, jobs: Iterable[Job]) -> None:
        """Take jobs; each is `Accepted` or ends at once. Events come with the next `step` or `take_events`."""
        for job in jobs:
            try:
                self._add(job)
            except InvalidRequest as error:
                self._emit(job, _failed(error))

    def cancel(self, requests: Iterable[str]) -> None:
        """End requests and free what they hold, now; ids the engine does not know are passed over."""
        for request_id in requests:
            if request := self._requests.get(request_id):
                self._end(request.sequence, Cancelled())

    def take_events(self) -> list[JobEvent]:
        """Events since the last call."""
        events, self._events = self._events, []
        return events

    @property
    def has_work(self) -> bool:
        """Whether any job is unfinished or any event not taken."""
        return bool(self._requests or self._events)

    def next_due(self) -> float | None:
        """Monotonic time from which on `step` has something to do (0: at once); None without work."""
        if self._events or self._scheduler.can_admit():
            return 0.0
        times = [self._runner.due(sequence) for sequence in self._scheduler.running]
        deadlines = [s.job.deadline for s in self._scheduler.waiting if s.job.deadline is not None]
        if deadlines:
            times.append(self._clock() + min(deadlines) - self._unix_time())
        return min(times, default=None)

    def stats(self) -> EngineStats:
        """Totals since the engine was made, and what runs and waits now."""
        running = self._scheduler.running
        return self._recorder.message(
            running=len(running),
            waiting=len(self._scheduler.waiting),
            reserved_tokens=sum(sequence.reserved_tokens for sequence in running),
        )

    # -- the step

    def step(self) -> list[JobEvent]:
        """Admit, schedule, forward, sample, emit.

        Returns:
            All events since the last call; at most one `Tokens` per request.

        Raises:
            EngineBroken: the device is unusable; the engine is of no more use.
        """
        self._refuse_expired()
        plan = self._scheduler.plan(self._clock(), self._runner.due)
        if plan.rows:
            started = self._clock()
            method: Method = "prefill" if any(_prompt_tokens(row) for row in plan.rows) else "decode"
            self._recorder.started(method, len(plan.rows))
            computed = self._forward(plan)
            if computed is None:
                self._recorder.failed(method)
            else:
                forwarded = self._clock()
                rows, logits = computed
                sampled = self._advance(rows, logits)
                self._recorder.succeeded(
                    method,
                    forward=forwarded - started,
                    decode=self._clock() - forwarded,
                    prompt_tokens=sum(map(_prompt_tokens, rows)),
                    generated_tokens=sampled,
                )
        return self.take_events()

    def _refuse_expired(self) -> None:
        for sequence in self._scheduler.expired(self._unix_time()):
            self._end(sequence, _failed(DeadlineExceeded()))

    def _forward(self, plan: StepPlan) -> tuple[list[Row], FloatArray] | None:
        """The rows that were computed and their logits; sequences at fault are ended. None when nothing is left."""
        rows = plan.rows
        while rows:
            try:
                return rows, self._runner.forward(StepPlan(rows))
            except RequestFault as fault:
                self._end(fault.sequence, _failed(fault.error))
                remaining = [row for row in rows if row.sequence is not fault.sequence]
                if len(remaining) == len(rows):
                    raise EngineBroken("the model runner blames a sequence that is not in the step") from fault
                rows = remaining
            except EngineBroken:
                raise
            except Exception as error:
                # Whose fault it was is not known: these requests end (another attempt may do), the engine goes on.
                log.exception("a step failed")
                failure = _failed(GenerationFailed(f"{type(error).__name__} in the model"), retryable=True)
                for row in rows:
                    self._end(row.sequence, failure)
                return None
        return None

    def _advance(self, rows: list[Row], logits: FloatArray) -> int:
        """Take in what was computed: prompt log probabilities, and the next tokens, whose number is returned."""
        sampled = 0
        first = 0
        for row in rows:
            sequence = row.sequence
            sequence.computed = row.start + row.count
            row_logits = logits[first : first + row.logits]
            first += row.logits
            try:
                if sequence.job.parameters.prefill_logprobs:
                    self._take_prompt_logprobs(row, row_logits)
                if row.logits and sequence.remaining == 0:
                    self._append(sequence, self._sampler.sample(sequence, row_logits[-1]))
                    sampled += 1
            except TgqError as error:
                self._end(sequence, _failed(error))
            except Exception as error:
                # The next token of one request must not end the others.
                log.exception("sampling or detokenizing failed")
                self._end(sequence, _failed(GenerationFailed(f"{type(error).__name__} after the model")))
        return sampled

    def _append(self, sequence: Sequence, choice: Choice) -> None:
        answer = self._requests[sequence.job.id].answer
        offset = answer.next_offset
        tokens = answer.append(choice)
        sequence.ids.append(choice.id)
        if answer.finished is not None:
            self._end(sequence, Tokens(offset, tokens, self._finish(sequence, answer)))
        elif tokens:
            self._emit(sequence.job, Tokens(offset, tokens))

    def _take_prompt_logprobs(self, row: Row, logits: FloatArray) -> None:
        sequence = row.sequence
        prefill = self._requests[sequence.job.id].answer.prefill
        if row.start == 0:
            prefill.append(self._prefill_token(sequence.ids[0], None))
        following = sequence.ids[row.start + 1 : min(row.start + row.count + 1, sequence.prompt_length)]
        logprobs = self._sampler.prompt_logprobs(logits[: len(following)], following)
        prefill.extend(map(self._prefill_token, following, logprobs))

    # -- one request

    def _add(self, job: Job) -> None:
        known = self._requests.get(job.id)
        if known is not None:
            if job.attempt < known.sequence.job.attempt:
                self._emit(job, Cancelled())
                return
            if job.attempt == known.sequence.job.attempt:
                self._emit(job, Accepted(""))
                return
        check_job(job, self._runner.card, self._runner.vocab_size)
        self._arrivals += 1
        sequence = Sequence(job, self._arrivals)
        if not self._scheduler.can_fit(sequence):
            raise InvalidRequest(
                f"`inputs` tokens + `max_new_tokens` must be <= {self._runner.card.max_batch_total_tokens}, the room of this "
                f"worker. Given: {job.cost}"
            )
        answer = Answer(job, self._tokenizer)
        if known is not None:
            self._end(known.sequence, Cancelled())
        self._emit(job, Accepted(""))
        if answer.finished is not None:
            # An earlier attempt was lost between its last token and its end.
            self._emit(job, Tokens(sequence.generated, [], self._finish(sequence, answer)))
            return
        self._requests[job.id] = _Request(sequence, answer)
        self._scheduler.add(sequence)

    def _finish(self, sequence: Sequence, answer: Answer) -> Finish:
        assert answer.finished is not None
        seconds = 0.0 if sequence.admitted_at is None else self._clock() - sequence.admitted_at
        return Finish(answer.finished, sequence.generated, seconds, answer.stop, answer.prefill)

    def _end(self, sequence: Sequence, body: FrameBody) -> None:
        """Forget a request and free what it holds; `body` is its last event."""
        del self._requests[sequence.job.id]
        self._scheduler.remove(sequence)
        self._runner.release(sequence)
        self._emit(sequence.job, body)

    def _emit(self, job: Job, body: FrameBody) -> None:
        self._events.append(JobEvent(job.id, job.attempt, body))

    def _prefill_token(self, token_id: int, logprob: float | None) -> PrefillToken:
        return PrefillToken(token_id, self._tokenizer.token_text(token_id), logprob)


def _failed(error: TgqError, *, retryable: bool = False) -> Failed:
    return Failed(error.error_type, error.message, retryable)


def _prompt_tokens(row: Row) -> int:
    return max(0, min(row.start + row.count, row.sequence.prompt_length) - row.start)
