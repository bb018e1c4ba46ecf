"""The engine: jobs in, one step after another, events out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from common.errors import DeadlineExceeded, GenerationFailed, InvalidRequest, TgqError
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Accepted, Cancelled, EngineStats, Failed, Finish, FrameBody, Job, Token, Tokens
from workers.engine.answer import Answer
from workers.engine.block_pool import BlockPool
from workers.engine.grammar import Grammars, GrammarState
from workers.engine.job_check import check_job
from workers.engine.messages import JobEvent
from workers.engine.overlap import Outcome, Pipeline, computed
from workers.engine.plan import EngineBroken, FloatArray, ModelRunner, RequestFault, Row, StepPlan
from workers.engine.prefix_cache import root_digest
from workers.engine.sampler import Choice, Sampler, finite
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import AdapterVersion, Sequence
from workers.engine.speculation import Drafter
from workers.engine.stats import Method, StatsRecorder

log = logging.getLogger(__name__)

DEFAULT_PREFILL_TOKENS = {"cpu": 128}
"""Prompt tokens per step at most, by device; 4096 elsewhere."""
GRAMMAR_POLL_SECONDS = 0.002
"""A sequence whose grammar is not compiled yet is looked at again after this time."""


@dataclass(slots=True)
class _Child:
    sequence: Sequence
    answer: Answer
    ended: bool = False


@dataclass(slots=True)
class _Request:
    job: Job
    children: list[_Child]
    later: list[Sequence] = field(default_factory=list)
    """Children that begin once the first one has computed the prompt."""

    @property
    def unfinished(self) -> int:
        return sum(not child.ended for child in self.children)


class Engine:
    """Runs jobs on a model, many at once, one step at a time. Not for several threads.

    Every job added ends in exactly one last event: `Tokens` that `ends`, `Failed` or `Cancelled`. Of the attempts of one
    request only the newest runs: an older one ends as `Cancelled` (whichever comes first), the same one again is `Accepted`
    again and changes nothing.

    The children of a job are sequences of their own. The first that is not finished computes the prompt, the others begin
    with what it computed; each has its own `Tokens` with its own `finish`. When one fails the request fails.
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
        self._grammars = Grammars(tokenizer, runner.vocab_size)
        self._scheduler = Scheduler(
            BlockPool(runner.num_blocks, runner.block_size, contiguous=runner.contiguous_blocks),
            max_batch_size=card.max_batch_size,
            max_prefill_tokens=settings.max_batch_prefill_tokens or DEFAULT_PREFILL_TOKENS.get(card.device_type, 4096),
        )
        # A script is read token by token; there is no step to save.
        speculate = 0 if card.device_type == "scripted" else settings.speculate
        self._drafter = Drafter(speculate, runner.block_size)
        # Where a step may hold proposed tokens, nobody knows beforehand how far it gets.
        self._pipeline = Pipeline(runner, self._scheduler, self._alive, ahead=settings.overlap and not speculate)
        self._prefix_caching = settings.prefix_caching
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
                self._end(request, Cancelled())

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
        times = [self._due(sequence) for sequence in self._scheduler.running]
        deadlines = [s.job.deadline for s in self._scheduler.waiting if s.job.deadline is not None]
        if deadlines:
            times.append(self._clock() + min(deadlines) - self._unix_time())
        return min(times, default=None)

    def stats(self) -> EngineStats:
        """Totals since the engine was made, and what runs and waits now."""
        scheduler = self._scheduler
        stats = self._recorder.message(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + sum(len(request.later) for request in self._requests.values()),
            reserved_tokens=sum(sequence.reserved_tokens for sequence in scheduler.running),
        )
        stats.prefix_asked_tokens = scheduler.prefix_asked_tokens
        stats.prefix_hit_tokens = scheduler.prefix_hit_tokens
        stats.preemptions = scheduler.preemptions
        return stats

    # -- the step

    def step(self) -> list[JobEvent]:
        """Admit, schedule, forward, sample, emit.

        Returns:
            All events since the last call; one `Tokens` per child at most, one more for each proposed token that was right.

        Raises:
            EngineBroken: the device is unusable; the engine is of no more use.
        """
        self._refuse_expired()
        plan = self._pipeline.pending() or self._scheduler.plan(self._clock(), self._due)
        if plan.copies:
            self._copy(plan)
        if plan.rows:
            plan = self._drafter.draft(plan)
            started = self._clock()
            method: Method = "prefill" if any(_prompt_tokens(row) for row in plan.rows) else "decode"
            self._recorder.started(method, len(plan.rows))
            result = self._forward(plan)
            if result is None:
                self._recorder.failed(method)
            else:
                forwarded = self._clock()
                rows, outcome = result
                sampled = self._advance(rows, outcome)
                ended = self._clock()
                self._scheduler.pace.took(sum(row.count for row in rows), ended - started)
                self._recorder.succeeded(
                    method,
                    forward=forwarded - started,
                    decode=ended - forwarded,
                    prompt_tokens=sum(map(_prompt_tokens, rows)),
                    generated_tokens=sampled,
                )
        return self.take_events()

    def _refuse_expired(self) -> None:
        for sequence in self._scheduler.expired(self._unix_time()):
            self._end(self._requests[sequence.job.id], _failed(DeadlineExceeded()))

    def _copy(self, plan: StepPlan) -> None:
        try:
            self._runner.copy(plan.copies)
        except Exception as error:
            # Whatever it was, nobody knows any more what the cache holds.
            raise EngineBroken(f"{type(error).__name__} while the cache was copied") from error

    def _forward(self, plan: StepPlan) -> tuple[list[Row], Outcome] | None:
        """The rows that were computed and what came of them; sequences at fault are ended. None when nothing is left."""
        while rows := plan.rows:
            try:
                self._grammars.prefetch([g for row in rows if row.logits and (g := self._grammar(row.sequence))])
                return rows, self._pipeline.compute(plan)
            except RequestFault as fault:
                if all(row.sequence is not fault.sequence for row in rows):
                    raise EngineBroken("the model runner blames a sequence that is not in the step") from fault
                self._fail(fault.sequence, _failed(fault.error, retryable=fault.retryable))
                plan = StepPlan([row for row in rows if self._alive(row.sequence)])
            except EngineBroken:
                raise
            except Exception as error:
                # Whose fault it was is not known: these requests end (another attempt may do), the engine goes on.
                log.exception("a step failed")
                failure = _failed(GenerationFailed(f"{type(error).__name__} in the model"), retryable=True)
                for row in rows:
                    self._fail(row.sequence, failure)
                return None
        return None

    def _advance(self, rows: list[Row], outcome: Outcome) -> int:
        """Take in what was computed: prompt log probabilities, and the next tokens, whose number is returned."""
        sampled = 0
        for row, logits, choice in computed(rows, outcome):
            sequence = row.sequence
            if not self._alive(sequence):
                continue  # A sibling failed just now, or it ended while the step was under way.
            self._scheduler.advance(row)
            try:
                if sequence.wants_prompt_logprobs:
                    self._take_prompt_logprobs(row, logits)
                if row.logits and sequence.remaining == 0:
                    self._append(sequence, self._sample(sequence, logits) if choice is None else finite(choice))
                    sampled += 1
            except TgqError as error:
                self._fail(sequence, _failed(error))
            except Exception as error:
                # The next token of one request must not end the others.
                log.exception("sampling or detokenizing failed")
                self._fail(sequence, _failed(GenerationFailed(f"{type(error).__name__} after the model")))
        return sampled

    def _sample(self, sequence: Sequence, logits: FloatArray) -> Choice:
        grammar = self._grammar(sequence)
        return self._sampler.sample(sequence, logits[-1], None if grammar is None else grammar.allowed())

    def _append(self, sequence: Sequence, choice: Choice) -> None:
        request = self._requests[sequence.job.id]
        if request.later:
            self._scheduler.fork(sequence, request.later)
            request.later = []
        child = request.children[sequence.child]
        offset = child.answer.next_offset
        tokens = child.answer.append(choice)
        sequence.ids.append(choice.id)
        if child.answer.finished is not None:
            self._end_child(request, child, offset, tokens)
        elif tokens:
            self._emit(request.job, Tokens(offset, tokens, None, sequence.child))

    def _take_prompt_logprobs(self, row: Row, logits: FloatArray) -> None:
        sequence = row.sequence
        answer = self._requests[sequence.job.id].children[sequence.child].answer
        prefill = answer.prefill
        if not prefill:
            prefill.append(answer.prefill_token(Choice(sequence.ids[0], None)))
        # A sequence that was preempted has some already.
        start = max(row.start + 1, len(prefill))
        following = sequence.ids[start : min(row.start + row.count + 1, sequence.prompt_length)]
        rows = logits[start - row.start - 1 :][: len(following)]
        top = sequence.job.parameters.prefill_top_n_tokens
        prefill.extend(map(answer.prefill_token, self._sampler.prompt_choices(rows, following, top)))
        sequence.prompt_known = len(prefill)

    # -- one request

    def _add(self, job: Job) -> None:
        known = self._requests.get(job.id)
        if known is not None:
            if job.attempt < known.job.attempt:
                self._emit(job, Cancelled())
                return
            if job.attempt == known.job.attempt:
                self._emit(job, Accepted(""))
                return
        check_job(job, self._runner.card, self._runner.vocab_size)
        self._arrivals += 1
        adapter = None if job.adapter is None else self._runner.adapter(job.adapter)
        children = [self._child(job, index, adapter) for index in range(job.parameters.children)]
        if not self._scheduler.can_fit(children[0].sequence):
            raise InvalidRequest(
                f"`inputs` tokens + `max_new_tokens` must be <= {self._runner.card.max_batch_total_tokens}, the room of this "
                f"worker. Given: {job.length}"
            )
        if known is not None:
            self._end(known, Cancelled())
        self._emit(job, Accepted(""))
        request = self._requests[job.id] = _Request(job, children)
        for child in children:
            if child.answer.finished is not None:
                # An earlier attempt was lost between this child's last token and the end.
                self._end_child(request, child, child.sequence.generated, [])
        if request.unfinished:
            first, *request.later = [child.sequence for child in children if not child.ended]
            self._scheduler.add(first)

    def _child(self, job: Job, index: int, adapter: AdapterVersion | None) -> _Child:
        alone = job.child(index)
        asked = alone.parameters
        grammar = None
        if asked.grammar is not None:
            grammar = self._grammars.start(asked.grammar, ignore_eos=asked.ignore_eos)
        root = self._root(job, adapter)
        sequence = Sequence(alone, self._arrivals, child=index, root=root, adapter=adapter)
        return _Child(sequence, Answer(alone, self._tokenizer, grammar))

    def _grammar(self, sequence: Sequence) -> GrammarState | None:
        request = self._requests.get(sequence.job.id)
        return None if request is None else request.children[sequence.child].answer.grammar

    def _due(self, sequence: Sequence) -> float:
        """Monotonic time before which the sequence is not scheduled: its grammar is compiled beside the steps."""
        grammar = self._grammar(sequence)
        if grammar is not None and not grammar.ready:
            return self._clock() + GRAMMAR_POLL_SECONDS
        return self._runner.due(sequence)

    def _root(self, job: Job, adapter: AdapterVersion | None) -> bytes | None:
        """What the keys and values of a job's tokens depend on apart from the tokens."""
        if not self._prefix_caching:
            return None
        card = self._runner.card
        return root_digest(card.model_id, card.sha, adapter.salt if adapter else None, job.cache_salt)

    def _alive(self, sequence: Sequence) -> bool:
        request = self._requests.get(sequence.job.id)
        return request is not None and request.children[sequence.child].sequence is sequence

    def _finish(self, sequence: Sequence, answer: Answer) -> Finish:
        assert answer.finished is not None
        seconds = 0.0 if sequence.admitted_at is None else self._clock() - sequence.admitted_at
        return Finish(answer.finished, sequence.generated, seconds, answer.stop, answer.prefill)

    def _end_child(self, request: _Request, child: _Child, offset: int, tokens: list[Token]) -> None:
        """A child has ended by itself, and with the last one its request."""
        child.ended = True
        finish = self._finish(child.sequence, child.answer)
        body = Tokens(offset, tokens, finish, child.sequence.child, request.unfinished)
        if request.unfinished:
            self._scheduler.remove(child.sequence)
            self._runner.release(child.sequence)
            self._emit(request.job, body)
        else:
            self._end(request, body)

    def _fail(self, sequence: Sequence, body: Failed) -> None:
        """End the request of a sequence, unless that happened already."""
        if self._alive(sequence):
            self._end(self._requests[sequence.job.id], body)

    def _end(self, request: _Request, body: FrameBody) -> None:
        """Forget a request and free what it holds; `body` is its last event."""
        del self._requests[request.job.id]
        for child in request.children:
            self._scheduler.remove(child.sequence)
            self._runner.release(child.sequence)
        self._emit(request.job, body)

    def _emit(self, job: Job, body: FrameBody) -> None:
        self._events.append(JobEvent(job.id, job.attempt, body))


def _failed(error: TgqError, *, retryable: bool = False) -> Failed:
    return Failed(error.error_type, error.message, retryable)


def _prompt_tokens(row: Row) -> int:
    return max(0, min(row.start + row.count, row.sequence.prompt_length) - row.start)
