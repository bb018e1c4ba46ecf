"""The workers as operators deal with them: who they are, what they hold, what they are told."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple, cast, get_args

import redis

from common.held_jobs import HeldJobs, decode_held_jobs
from common.keys import CANCELLED_SECONDS, Keys
from common.queue_depth import oldest_age_sync, queue_depth_sync
from common.registry import live_workers_sync
from common.settings import Settings
from common.wire import Cancel, JobClass, ListJobs, Pause, WorkerRecord, encode_msgpack
from ops.configuration import without_password

ANSWER_SECONDS = 3.0
"""How long a worker has to answer."""


class Unknown(Exception):
    """No worker, or no request, has this name; or several have."""


class Queue(NamedTuple):
    """What waits for the workers of one model."""

    model: str
    job_class: JobClass
    jobs: int
    tokens: int
    """KV-cache tokens they may come to hold."""
    oldest: float
    """Seconds that the one that waits longest has waited."""


class Fleet:
    """Methods raise `redis.RedisError` when Redis is away."""

    def __init__(self, client: redis.Redis, settings: Settings) -> None:
        self._client = client
        self._keys = Keys(settings.key_prefix)
        self._dead_after = settings.worker_dead_after

    def workers(self) -> list[WorkerRecord]:
        """The live ones, by id."""
        return live_workers_sync(self._client, self._keys, self._dead_after)

    def queues(self) -> list[Queue]:
        """Those of all models that have workers, and of others in whose queues something waits."""
        served = {worker.model for worker in self.workers()}
        queued = {model for name in self._client.scan_iter(self._keys.queues) if (model := self._keys.model_of(name))}
        found = []
        for model in sorted(served | queued):
            of_model = [self._queue(model, job_class) for job_class in get_args(JobClass)]
            if model in served or any(queue.jobs for queue in of_model):
                found += of_model
        return found

    def _queue(self, model: str, job_class: JobClass) -> Queue:
        name = self._keys.queue(model, job_class)
        return Queue(model, job_class, *queue_depth_sync(self._client, name), oldest_age_sync(self._client, name))

    def held(self) -> list[HeldJobs]:
        """What each worker holds; those that do not answer in `ANSWER_SECONDS` are left out."""
        answers = self._keys.answers(secrets.token_hex(8))
        asked = self._client.publish(self._keys.control, encode_msgpack(ListJobs(answers)))
        told: list[HeldJobs] = []
        until = time.monotonic() + ANSWER_SECONDS
        while len(told) < int(asked) and (left := until - time.monotonic()) > 0:
            # Redis waits no shorter than this, and no longer than the connection's own time limit.
            answer = self._client.blpop([answers], timeout=max(min(left, 0.5), 0.01))
            if answer is not None:
                told.append(decode_held_jobs(cast("bytes", answer[1])))
        return sorted(told, key=lambda held: held.worker)

    def pause(self, name: str, paused: bool) -> WorkerRecord:
        """Let a worker take nothing more, or go on.

        Args:
            name: a worker's id, or the beginning or end of one.

        Raises:
            Unknown: it is none of theirs, or several workers', or of one that hears nothing yet.
        """
        worker = _one(name, self.workers())
        if not self._client.publish(self._keys.control_of(worker.id), encode_msgpack(Pause(paused))):
            raise Unknown(f"{worker.id} does not hear: it is {shown_state(worker)}; try again once it is ready")
        return worker

    def wait(self, worker: str, states: Sequence[str], seconds: float | None) -> WorkerRecord | None:
        """The worker once it is in one of these states; None when it is not in time, or gone."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            record = next((record for record in self.workers() if record.id == worker), None)
            if record is None or record.state in states:
                return record
            if until is not None and time.monotonic() >= until:
                return None
            time.sleep(0.2)

    def cancel(self, name: str) -> str:
        """Cancel a request that some worker holds; returns its id.

        Args:
            name: its job's id, or the beginning of one.

        Raises:
            Unknown: no worker holds one of this name, or they hold several.
        """
        found = {job.request for held in self.held() for job in held.jobs if job.request.startswith(name)}
        if not found:
            raise Unknown(f"no request `{name}` is held by a worker")
        if len(found) > 1:
            raise Unknown(f"`{name}` is the beginning of {len(found)} requests: see `tgq running`")
        (request,) = found
        with self._client.pipeline() as pipe:
            # Its submitter asks whether somebody cancelled it before it goes on elsewhere.
            pipe.set(self._keys.cancelled(request), "1", ex=CANCELLED_SECONDS)
            pipe.publish(self._keys.control, encode_msgpack(Cancel(request)))
            pipe.execute()
        return request


def shown_state(worker: WorkerRecord) -> str:
    """Its state, and how far it has loaded."""
    if worker.progress >= 1:
        return worker.state
    stage = f" ({worker.stage})" if worker.stage else ""
    return f"{worker.state} {worker.progress:.0%}{stage}"


def no_answer(settings: Settings, error: Exception) -> str:
    """What an operator reads when Redis is away; whoever named none may mean another one."""
    hint = "" if settings.redis_url else " (REDIS_URL is not set: `make serve` prints that of its server)"
    return f"no answer from {without_password(settings.broker_url)}: {error}{hint}"


def _one(name: str, workers: Sequence[WorkerRecord]) -> WorkerRecord:
    found = [worker for worker in workers if worker.id == name]
    found = found or [worker for worker in workers if worker.id.startswith(name) or worker.id.endswith(name)]
    if not found:
        raise Unknown(f"no worker `{name}`: see `tgq ps`")
    if len(found) > 1:
        raise Unknown(f"`{name}` is the beginning or the end of {len(found)} workers: see `tgq ps`")
    return found[0]
