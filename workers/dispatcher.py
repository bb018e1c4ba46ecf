"""The jobs this worker holds, from the pull to their last frame: to the engine, and back out.

A job is held from its delivery on. It is *given* once it was sent to the engine process, *accepted* once the engine
says so. With a reply channel, its Celery message is acknowledged at acceptance and its submitter watches from there on;
without one, the message stays open until the job ends, and its frames are folded into one answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import structlog

from common.errors import GenerationFailed, InvalidRequest, TgqError
from common.held_jobs import HeldJob
from common.wire import Accepted, Cancelled, Failed, FrameBody, Job, ModelCard, Tokens
from workers.answer import Answer, JobReturned
from workers.ended_attempts import EndedAttempts
from workers.engine.messages import EngineOutput, JobEvent, LoadProgress, Ready
from workers.held import Delivery, Effects, Engine, Held, OpenDelivery, Send
from workers.job_spans import JobSpans
from workers.load import NOTHING, Load
from workers.publisher import Outgoing
from workers.stats import StatsTotals
from workers.transport import Offer

log = structlog.get_logger()


class Dispatcher:
    """Thread-safe. `send` publishes frames; `freed` says that there is room again; both return at once."""

    def __init__(
        self,
        worker: str,
        engine: Engine,
        *,
        max_attempts: int,
        batch_reserve: int,
        send: Send,
        freed: Callable[[], None],
        spans: JobSpans | None = None,
    ) -> None:
        self.worker = worker
        self.stats = StatsTotals()
        self.loading = LoadProgress("", 0.0)
        """How far the engine has loaded its model; 1 when it is ready."""
        self.card: ModelCard | None = None
        self._engine = engine
        self._max_attempts = max_attempts
        self._send = send
        self._freed = freed
        self._spans = spans
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._load = Load(batch_reserve)
        self._waiting: dict[str, Held] = {}
        """Held and not given, oldest first."""
        self._suspect: str | None = None
        """Of the jobs that were lost with their engines, one runs at a time: one that kills engines dies alone."""
        self._overdue: set[str] = set()
        """Delivery tags; until the end of the pull they came with."""
        self._ended = EndedAttempts()
        self._ready = False
        self._closed = self._paused = False

    # -- asked by others ------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        return self._ready

    def busy(self) -> bool:
        """Whether the engine has a job."""
        return len(self._held) > len(self._waiting)

    def counts(self) -> tuple[int, int]:
        """Accepted jobs, and held ones the engine has not accepted."""
        with self._lock:
            accepted = sum(held.accepted for held in self._held.values())
            return accepted, len(self._held) - accepted

    @property
    def paused(self) -> bool:
        return self._paused

    def jobs(self) -> list[HeldJob]:
        """The held jobs as operators see them, oldest first."""
        with self._lock:
            return [held.shown() for held in self._held.values()]

    def channels(self) -> set[str]:
        """Reply channels of the held jobs."""
        with self._lock:
            return {held.job.reply_to for held in self._held.values() if held.job.reply_to is not None}

    def requests(self) -> list[str]:
        with self._lock:
            return list(self._held)

    def waiting(self) -> list[str]:
        """Requests held and not given to the engine, oldest first."""
        with self._lock:
            return list(self._waiting)

    def room(self, queues: Sequence[str]) -> Offer:
        """What may be pulled: see `workers.transport.Intake`. Queues after the first leave the reserve free."""
        with self._lock:
            if self._closed or self._paused or not self._ready or self.card is None:
                return Offer(0, 0, [NOTHING] * len(queues))
            return self._load.offer(self.card, len(queues))

    # -- from Celery ----------------------------------------------------------------------------------------------------

    def overdue(self, tag: str) -> None:
        """The job of this delivery is batch work whose turn has come at last: from now on it is an interactive one."""
        with self._lock:
            self._overdue.add(tag)

    def hold(self, job: Job, delivery: Delivery) -> None:
        """Take a delivered job, or refuse it; `give` sends those taken to the engine."""
        with self._change() as effects:
            moments = None if self._spans is None else self._spans.taken(job)
            if delivery.tag in self._overdue:
                job = msgspec.structs.replace(job, job_class="interactive")
            known = self._held.get(job.id)
            if known is not None and known.job.attempt == job.attempt and not (known.accepted and job.reply_to):
                # The same message once more (its reaper thought us dead), or a copy: whichever way it ends, it ends once.
                if known.delivery.tag != delivery.tag:
                    effects.finished.append((known.delivery, None))
                known.delivery = delivery
            elif (known is not None and known.job.attempt >= job.attempt) or self._ended.has(job.id, job.attempt):
                log.info("job_stale", request=job.id, attempt=job.attempt)
                effects.finished.append((delivery, None))
            elif (error := self._unfit(job)) is not None:
                self._refuse(job, delivery, error, effects)
            else:
                if known is not None:
                    self._engine.cancel([job.id])
                    effects.finished.append((known.delivery, None))
                    self._drop(known)
                held = self._held[job.id] = self._waiting[job.id] = Held(job, delivery, moments=moments)
                self._load.add(held, self.card)

    def suspect(self, request: str) -> None:
        """One more loss would be the last of this waiting job: those at whose side it was lost must not be lost with it."""
        with self._lock:
            if (held := self._waiting.get(request)) is not None:
                held.losses = max(held.losses, 1)

    def give(self) -> None:
        """Send every waiting job to the engine, if it runs; all is known of them now that there is to know."""
        with self._lock:
            for held in self._waiting.values():
                held.known = True
            self._overdue.clear()
            self._give()

    def abandon(self, request: str, delivery: Delivery) -> None:
        """Celery has ended this delivery's task itself (revoked, over its time limit)."""
        with self._lock:
            held = self._held.get(request)
            if held is None or held.delivery is not delivery:
                return
            if held.given:
                self._engine.cancel([request])
            self._drop(held)
        self._freed()

    def close(self) -> None:
        """Take nothing more."""
        self._closed = True

    def pause(self, paused: bool) -> None:
        """Take nothing more for a while, or take jobs again; those held go on."""
        with self._lock:
            self._paused = paused
        self._freed()

    def take_back(self) -> list[str]:
        """Stop holding every job the engine has not accepted; returns their delivery tags in the order of arrival."""
        with self._lock:
            held_back = [held for held in self._held.values() if not held.accepted]
            if given := [held.job.id for held in held_back if held.given]:
                self._engine.cancel(given)
            for held in held_back:
                self._drop(held, remember=False)
        return [held.delivery.tag for held in held_back]

    def hand_over(self, reason: str) -> int:
        """Let every job with a reply channel go; its submitter goes on elsewhere, from the tokens it has.

        Jobs nobody watches stay. Returns how many were let go.
        """
        with self._change() as effects:
            leaving = [held for held in self._held.values() if held.job.reply_to is not None]
            if given := [held.job.id for held in leaving if held.given]:
                self._engine.cancel(given)
            for held in leaving:
                self._end(held, GenerationFailed(reason), effects, retryable=True, handed_over=True)
        return len(leaving)

    # -- from submitters ------------------------------------------------------------------------------------------------

    def cancel(self, request: str, below: int | None = None) -> None:
        """End a request, whichever attempt of it is here; with `below` only a lower attempt than that."""
        with self._change() as effects:
            held = self._held.get(request)
            if held is None or (below is not None and held.job.attempt >= below):
                return
            if held.given:
                self._engine.cancel([request])  # Its `Cancelled` event ends the job.
            else:
                self._finish(held, Cancelled(), effects)

    def cancel_channel(self, channel: str) -> None:
        """The submitter behind this channel is gone."""
        with self._lock:
            requests = [held.job.id for held in self._held.values() if held.job.reply_to == channel]
        for request in requests:
            self.cancel(request)

    def open_deliveries(self) -> list[OpenDelivery]:
        """Jobs whose message is not acknowledged yet: those a reaper gives to others when it takes this worker for dead."""
        with self._lock:
            return [
                OpenDelivery(held.job.id, held.job.attempt, held.delivery)
                for held in self._held.values()
                if not held.accepted or held.job.reply_to is None
            ]

    def reaped(self, open_delivery: OpenDelivery) -> None:
        """Others have this job now: let go of it, unless its message has come here again meanwhile."""
        with self._change() as effects:
            held = self._held.get(open_delivery.request)
            if held is None or held.delivery is not open_delivery.delivery:
                return
            log.info("job_reaped", request=held.job.id, attempt=held.job.attempt)
            if held.given:
                self._engine.cancel([held.job.id])
            if held.accepted and held.job.reply_to is not None:
                # Accepted meanwhile: its submitter may have heard, and must not wait for what does not come.
                self._end(held, GenerationFailed("the worker was away"), effects, retryable=True, handed_over=True)
                return
            effects.finished.append((held.delivery, JobReturned()))
            effects.freed = True
            self._drop(held, remember=False)

    # -- from the engine (`workers.engine_process.EngineListener`) ------------------------------------------------------

    def on_progress(self, progress: LoadProgress) -> None:
        self.loading = progress

    def on_ready(self, ready: Ready) -> None:
        with self._lock:
            self.card, self.loading, self._ready = ready.card, LoadProgress("", 1.0), True
            self._give()
        self._freed()

    def on_output(self, output: EngineOutput) -> None:
        with self._change() as effects:
            if output.stats is not None:
                self.stats.update(output.stats)
                self._load.lengths.preempted(output.stats.preemptions)
            for event in output.events:
                held = self._held.get(event.request)
                if held is not None and held.given and held.job.attempt == event.attempt:
                    self._on_event(held, event, effects)
            if self._waiting:
                self._give()

    def on_lost(self, reason: str) -> None:
        with self._change() as effects:
            self._ready, self._suspect = False, None
            self.stats.engine_lost()
            for held in [held for held in self._held.values() if held.given]:
                held.losses += 1
                if held.job.reply_to is not None:
                    # Accepted or not: its submitter counts the attempts and need not wait for the next engine here.
                    self._end(held, GenerationFailed(reason), effects, retryable=True)
                elif held.losses >= self._max_attempts:
                    self._end(held, GenerationFailed(f"{held.losses} engines were lost: {reason}"), effects)
                else:
                    held.given = held.accepted = False
                    held.generated, held.answer = 0, Answer()
                    self._waiting[held.job.id] = held

    # -- with the lock held ---------------------------------------------------------------------------------------------

    def _on_event(self, held: Held, event: JobEvent, effects: Effects) -> None:
        body = event.body
        if not held.accepted:
            held.accepted = True
            if held.moments is not None:
                held.moments.accept()
            if held.job.reply_to is not None and not isinstance(body, Failed | Cancelled):
                effects.frames.append(Outgoing(held.job.reply_to, held.job.id, held.job.attempt, Accepted(self.worker)))
                effects.finished.append((held.delivery, None))
        if isinstance(body, Tokens):
            held.generated += len(body.tokens)
            if body.finish is not None:
                self._load.lengths.ended(body.finish.generated_tokens)
            elif body.offset > held.answer_tokens:
                self._load.grown(held, body.offset)
        if isinstance(body, Tokens) and not body.ends:
            self._emit(held, body, effects)
        elif not isinstance(body, Accepted):
            self._finish(held, body, effects)

    def _emit(self, held: Held, body: FrameBody, effects: Effects) -> None:
        if held.moments is not None:
            held.moments.heard(body)
        if held.job.reply_to is not None:
            effects.frames.append(Outgoing(held.job.reply_to, held.job.id, held.job.attempt, body))
        elif isinstance(body, Tokens):
            held.answer.add(body)

    def _finish(self, held: Held, body: FrameBody, effects: Effects) -> None:
        """Hand on a job's last frame and let go of it."""
        self._emit(held, body, effects)
        # Told of an acceptance, Celery has finished with a job that replies; finishing twice does nothing.
        outcome = None if held.job.reply_to is not None else held.answer.outcome(body)
        effects.finished.append((held.delivery, outcome))
        effects.freed = True
        self._drop(held)

    def _end(
        self, held: Held, error: TgqError, effects: Effects, *, retryable: bool = False, handed_over: bool = False
    ) -> None:
        self._finish(held, Failed(error.error_type, error.message, retryable, handed_over), effects)

    def _drop(self, held: Held, *, remember: bool = True) -> None:
        request = held.job.id
        del self._held[request]
        self._waiting.pop(request, None)
        self._load.remove(held)
        if self._spans is not None and held.moments is not None:
            self._spans.ended(held.job, held.delivery.tag, held.moments)
        if self._suspect == request:
            self._suspect = None
        if remember:
            self._ended.add(request, held.job.attempt)

    def _give(self) -> None:
        if not self._ready:
            return
        jobs = []
        for request, held in list(self._waiting.items()):
            if not held.known:
                continue
            if held.losses:
                if self._suspect is not None:
                    continue
                self._suspect = request
            held.given = True
            del self._waiting[request]
            jobs.append(held.job)
        if jobs:
            self._engine.add(jobs)

    def _unfit(self, job: Job) -> TgqError | None:
        card = self.card
        if card is None:
            return None
        limit = min(card.max_total_tokens, card.max_batch_total_tokens)
        if job.length > limit:
            return InvalidRequest(
                f"`inputs` tokens + `max_new_tokens` must be <= {limit}. "
                f"Given: {len(job.prompt_ids)} `inputs` tokens and {job.parameters.max_new_tokens} `max_new_tokens`"
            )
        return None

    def _refuse(self, job: Job, delivery: Delivery, error: TgqError, effects: Effects) -> None:
        if job.reply_to is not None:
            failed = Failed(error.error_type, error.message)
            effects.frames.append(Outgoing(job.reply_to, job.id, job.attempt, failed))
        effects.finished.append((delivery, None if job.reply_to is not None else error))

    @contextmanager
    def _change(self) -> Iterator[Effects]:
        """Change the state with the lock held, and then carry out what that leads to."""
        effects = Effects()
        with self._lock:
            yield effects
            if effects.frames:
                # Still with the lock, so that frames leave in the order of the changes. A job's message is acknowledged
                # after its submitter has been told: a crash in between repeats, never loses.
                self._send(effects.frames, effects.finish if effects.finished else None)
        if not effects.frames:
            effects.finish()
        if effects.freed:
            self._freed()
