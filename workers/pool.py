"""The Celery pool whose only "process" is the engine.

Celery hands a task to `on_apply` and expects its callbacks when it is done; that is the one extension point that keeps
revoke, expiry, time limits, events and `inspect` working. The stock tracer runs at the end of a delivery (a job with a
reply channel: when the engine has accepted it), and the task's body only returns the outcome.
"""

from __future__ import annotations

import gc
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from celery import Task
from celery.concurrency.base import BasePool, apply_target
from celery.exceptions import Ignore, Reject

from common.celery_message import TASK_NAME, job_of
from common.errors import DeadlineExceeded, InvalidRequest, ServiceUnavailable, TgqError
from common.wire import WIRE_VERSION, Job
from workers.answer import Answer, JobCancelled, JobReturned
from workers.dispatcher import Dispatcher
from workers.publisher import Outgoing
from workers.refusal import refusal

log = structlog.get_logger()

_NO_BODY: tuple[Any, ...] = ((), {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None})


class Generate(Task):  # type: ignore[misc]
    """The task `tgq.generate`. Its work happened in the engine; this returns how it ended."""

    name = TASK_NAME
    ignore_result = True
    acks_late = True
    # Celery shows the result's first characters in logs and events: answers do not belong there.
    resultrepr_maxsize = 0

    settling: EngineDelivery | None = None
    """The delivery that is ending now."""

    def run(self, *_args: Any, **_options: Any) -> dict[str, Any] | None:
        assert self.settling is not None
        return self.settling.result()


class EngineDelivery:
    """One delivered message: what Celery calls an apply result."""

    def __init__(self, pool: EnginePool, call: Callable[[], None], tag: str) -> None:
        self.tag = tag
        self.request: str | None = None
        self._pool = pool
        self.call = call
        """Runs the tracer, on the event loop's thread."""
        self.timer: Any = None
        self._finished = False
        self._outcome: Answer | TgqError | None = None

    def finish(self, outcome: Answer | TgqError | None) -> None:
        if not self._finished:
            self._finished = True
            self._outcome = outcome
            self._pool.settle_soon(self)

    def result(self) -> dict[str, Any] | None:
        match self._outcome:
            case Answer():
                return self._outcome.as_dict()
            case JobCancelled():
                raise Ignore
            case JobReturned():
                # Not acknowledged: the message may be here once more by now, under the same delivery tag.
                raise Reject(requeue=True)
            case None:
                return None
            case error:
                raise error

    @property
    def failed(self) -> bool:
        return isinstance(self._outcome, Exception)

    def terminate(self, _signal: Any = None) -> None:
        """Celery has revoked the task and settled its message."""
        self._finished = True
        if self.request is not None:
            self._pool.dispatcher.abandon(self.request, self)


class EnginePool(BasePool):  # type: ignore[misc]
    """Subclass it with `dispatcher`, `send`, `arrived` and `drain`; Celery makes the instance."""

    dispatcher: Dispatcher
    send: Callable[[list[Outgoing]], None]
    arrived: Callable[[], None]
    """Called for a task that was held back until its time, which comes with no pull."""
    drain: Callable[[Callable[[], None]], None]
    """Called at shutdown with a function that runs one turn of the event loop's callbacks."""

    signal_safe = False
    task_join_will_block = False
    body_can_be_buffer = True

    def on_start(self) -> None:
        self._hub: Any = None
        self._settled: deque[EngineDelivery] = deque()
        # One callback at a time: kombu's loop runs ten due timers a turn and may then sleep for a second.
        self._settle_due = self._turn_due = False
        self._pid = os.getpid()

    def register_with_event_loop(self, hub: Any) -> None:
        self._hub = hub

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[[int, float], None] | None = None,
        timeout_callback: Callable[[bool, float], None] | None = None,
        timeout: float | None = None,
        **_options: Any,
    ) -> EngineDelivery | None:
        name, task_id, request, *_ = args
        if name != TASK_NAME:
            apply_target(target, args, kwargs, callback, accept_callback)
            return None
        if accept_callback is not None:
            accept_callback(self._pid, time.monotonic())
        properties = request["properties"]
        if properties.get("reply_to"):
            # The tracer would decode the prompt again, for a body that does not look at it.
            args = (name, task_id, request, _NO_BODY, None, None)
        delivery = EngineDelivery(
            self, lambda: apply_target(target, args, kwargs, callback), properties["delivery_tag"]
        )
        try:
            job = _admissible(request["args"])
        except TgqError as error:
            log.warning("job_refused", request=task_id, error_type=error.error_type, reason=error.message)
            frames = refusal(request, properties, error)
            type(self).send(frames)
            # Its traceback would hold whatever was pulled with this.
            delivery.finish(None if frames else error.with_traceback(None))
            return delivery
        delivery.request = job.id
        if timeout is not None and timeout_callback is not None and self._hub is not None:
            delivery.timer = self._hub.call_later(timeout, self._time_out, delivery, timeout_callback, timeout)
        self.dispatcher.hold(job, delivery)
        if request.get("eta") and self._hub is not None:
            self._hub.call_soon(type(self).arrived)
        return delivery

    def settle_soon(self, delivery: EngineDelivery) -> None:
        """From any thread: run the delivery's tracer on the event loop's thread."""
        self._settled.append(delivery)
        if self._hub is not None and not self._settle_due:
            self._settle_due = True
            self._hub.call_soon(self.settle)

    def settle(self) -> None:
        """Let Celery finish what has ended. On the event loop's thread."""
        self._settle_due = failed = False
        task = self.app.tasks[TASK_NAME]
        while self._settled:
            delivery = self._settled.popleft()
            if delivery.timer is not None:
                delivery.timer.cancel()
            task.settling = delivery
            try:
                delivery.call()
            except Exception:
                # The boundary between one task and the consumer: a fault in a task's signals stops no other.
                log.exception("task_end_failed", request=delivery.request)
            finally:
                task.settling = None
            failed = failed or delivery.failed
        if failed:
            # What Celery keeps of an error, in a cycle, is 0.3 MB of few objects: the collector would let hundreds pile up.
            gc.collect(1)
        if self._hub is not None and not self._turn_due:
            # Acknowledgements are queued on this thread, which does not wake the loop by itself.
            self._turn_due = True
            self._hub.call_later(0.001, self._turned)

    def _turned(self) -> None:
        self._turn_due = False

    def _time_out(
        self, delivery: EngineDelivery, timeout_callback: Callable[[bool, float], None], timeout: float
    ) -> None:
        delivery.terminate()
        timeout_callback(False, timeout)

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Celery's `terminate` goes on to `EngineDelivery.terminate`; there is no process to signal."""

    def on_stop(self) -> None:
        type(self).drain(self._turn)

    on_terminate = on_stop

    def _turn(self) -> None:
        """What the event loop would do, once it no longer runs: callbacks (acknowledgements among them)."""
        self.settle()
        if self._hub is not None:
            for callback in self._hub._pop_ready():
                callback()

    def _get_info(self) -> dict[str, Any]:
        accepted, waiting = self.dispatcher.counts()
        return {**super()._get_info(), "accepted": accepted, "waiting": waiting}


def _admissible(arguments: Any) -> Job:
    """The job in a task's arguments.

    Raises:
        TgqError: it is none, of another version, too late, or asks for the impossible.
    """
    version = arguments[0].get("version", WIRE_VERSION) if arguments and isinstance(arguments[0], dict) else None
    if version is not None and version != WIRE_VERSION:
        raise ServiceUnavailable(f"this worker reads jobs of version {WIRE_VERSION}, not {version}")
    try:
        job = job_of(arguments)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"not a job: {error}") from None
    if not job.prompt_ids:
        raise InvalidRequest("`inputs` cannot be empty")
    job.parameters.check()
    if job.deadline is not None and job.deadline < time.time():
        raise DeadlineExceeded("The request's time was over before a worker could take it")
    return job
