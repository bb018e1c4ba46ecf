"""A dispatcher with everything around it recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common.errors import TgqError
from common.parameters import GenerationParameters
from common.wire import (
    Accepted,
    Finish,
    FrameBody,
    Job,
    ModelCard,
    Token,
    Tokens,
)
from workers.answer import Answer
from workers.dispatcher import Dispatcher
from workers.engine.messages import EngineOutput, JobEvent, Ready
from workers.job_spans import JobSpans
from workers.publisher import Outgoing
from workers.transport import Room

CARD = ModelCard(
    model_id="m", dtype="x", device_type="cpu", max_total_tokens=500, max_batch_total_tokens=1000, max_batch_size=10
)
QUEUES = ["tgq:queue:m:interactive", "tgq:queue:m:batch"]


class FakeEngine:
    def __init__(self) -> None:
        self.given: list[str] = []
        self.jobs: list[Job] = []
        self.cancelled: list[str] = []

    def add(self, jobs: list[Job]) -> None:
        self.given.extend(job.id for job in jobs)
        self.jobs.extend(jobs)

    def cancel(self, requests: list[str]) -> None:
        self.cancelled.extend(requests)


class FakeDelivery:
    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.outcomes: list[Answer | TgqError | None] = []

    def finish(self, outcome: Answer | TgqError | None) -> None:
        self.outcomes.append(outcome)


class Bench:
    """A dispatcher with everything around it recorded."""

    def __init__(
        self, *, ready: bool = True, max_attempts: int = 3, reserve: int = 2, spans: JobSpans | None = None
    ) -> None:
        self.engine = FakeEngine()
        self.frames: list[Outgoing] = []
        self.publish = True
        self.later: list[Callable[[], None]] = []
        self.freed = 0
        self.dispatcher = Dispatcher(
            "w",
            self.engine,
            max_attempts=max_attempts,
            batch_reserve=reserve,
            send=self.send,
            freed=self.on_freed,
            spans=spans,
        )
        if ready:
            self.dispatcher.on_ready(Ready(CARD))
            self.freed = 0

    def send(self, frames: list[Outgoing], then: Callable[[], None] | None = None) -> None:
        self.frames.extend(frames)
        if then is not None and self.publish:
            then()
        elif then is not None:
            self.later.append(then)

    def on_freed(self) -> None:
        self.freed += 1

    def room(self) -> tuple[int, list[Room]]:
        offer = self.dispatcher.room(QUEUES)
        return offer.largest, offer.rooms

    def hold(self, request: str, **fields: Any) -> FakeDelivery:
        delivery = FakeDelivery(f"tag-{request}")
        self.dispatcher.hold(self.job(request, **fields), delivery)
        return delivery

    def job(
        self, request: str, *, replies: bool = True, prompt: int = 10, new: int = 10, children: int = 1, **fields: Any
    ) -> Job:
        parameters = GenerationParameters(max_new_tokens=new, seed=0, children=children)
        return Job(
            id=request,
            model="m",
            prompt_ids=[1] * prompt,
            parameters=parameters,
            reply_to="c" if replies else None,
            submitted_at=0.0,
            **fields,
        )

    def run(self, request: str, *, replies: bool = True, **fields: Any) -> FakeDelivery:
        """Held, given and accepted."""
        delivery = self.hold(request, replies=replies, **fields)
        self.dispatcher.give()
        self.event(request, Accepted(""), attempt=fields.get("attempt", 1))
        return delivery

    def event(self, request: str, body: FrameBody, attempt: int = 1) -> None:
        self.dispatcher.on_output(EngineOutput([JobEvent(request, attempt, body)]))

    def bodies(self, request: str) -> list[FrameBody]:
        return [frame.body for frame in self.frames if frame.request == request]


def tokens(index: int, *, last: bool = False, special: bool = False) -> Tokens:
    finish = Finish("length", index + 1, 0.1) if last else None
    return Tokens(index, [Token(index, f"<{index}>", None, special=special)], finish)
