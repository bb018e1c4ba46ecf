"""What a worker knows of a job it holds, and whom it deals with on the job's behalf."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from common.errors import TgqError
from common.held_jobs import HeldJob
from common.wire import Job
from workers.answer import Answer
from workers.job_spans import Moments
from workers.publisher import Outgoing


class Delivery(Protocol):
    """Celery's side of a held job."""

    tag: str

    def finish(self, outcome: Answer | TgqError | None) -> None:
        """Let the Celery task end, with an answer, an error, or neither; from any thread, once."""


class Send(Protocol):
    """Publishes frames without blocking, and then calls `then`."""

    def __call__(self, frames: list[Outgoing], then: Callable[[], None] | None = None) -> None: ...


class Engine(Protocol):
    """The engine process; calls never block."""

    def add(self, jobs: list[Job]) -> None: ...

    def cancel(self, requests: list[str]) -> None: ...


@dataclass(slots=True)
class Held:
    job: Job
    delivery: Delivery
    answer_tokens: int = 0
    """Tokens each of its sequences is expected to add to those that were known."""
    generated: int = 0
    """Tokens its sequences have added here to those that were known."""
    known: bool = False
    """Whether it has been looked up what became of the request since its message was sent."""
    given: bool = False
    accepted: bool = False
    losses: int = 0
    """Engine processes that died with this job in them; at least one for a job that may be poisonous."""
    answer: Answer = field(default_factory=Answer)
    moments: Moments | None = None
    """Of a job whose spans are made at its end."""

    def shown(self) -> HeldJob:
        job = self.job
        earlier = len(job.generated_ids) + sum(map(len, job.sibling_ids))
        return HeldJob(
            request=job.id,
            attempt=job.attempt,
            job_class=job.job_class,
            tenant=job.tenant,
            adapter=job.adapter,
            accepted=self.accepted,
            prompt_tokens=len(job.prompt_ids),
            generated_tokens=earlier + self.generated,
            max_new_tokens=job.parameters.max_new_tokens,
            submitted_at=job.submitted_at,
        )


class OpenDelivery(NamedTuple):
    request: str
    attempt: int
    delivery: Delivery


@dataclass(slots=True)
class Effects:
    """What a change of state leads to, carried out in this order."""

    frames: list[Outgoing] = field(default_factory=list)
    finished: list[tuple[Delivery, Answer | TgqError | None]] = field(default_factory=list)
    freed: bool = False

    def finish(self) -> None:
        for delivery, outcome in self.finished:
            delivery.finish(outcome)
