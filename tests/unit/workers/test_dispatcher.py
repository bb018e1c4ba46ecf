"""Jobs between Celery and the engine: state, room, refusals, losses. No process, no Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from common.errors import GenerationFailed, InvalidRequest, TgqError
from common.parameters import GenerationParameters
from common.wire import (
    Accepted,
    Cancelled,
    EngineStats,
    Failed,
    Finish,
    FrameBody,
    Histogram,
    Job,
    ModelCard,
    Token,
    Tokens,
)
from workers.answer import Answer, JobCancelled, JobReturned
from workers.answer_lengths import SEEN_ENOUGH, UNKNOWN
from workers.dispatcher import Dispatcher
from workers.engine.messages import EngineOutput, JobEvent, Ready
from workers.job_spans import JobSpans
from workers.publisher import Outgoing
from workers.stats import StatsTotals
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


def test_a_replying_job_is_acknowledged_once_its_submitter_knows_of_its_acceptance() -> None:
    bench = Bench()
    bench.publish = False
    delivery = bench.run("a")
    assert bench.bodies("a") == [Accepted("w")]
    assert delivery.outcomes == []
    bench.later.pop()()
    assert delivery.outcomes == [None]


def test_frames_go_to_the_reply_channel_and_the_end_frees_the_slot() -> None:
    bench = Bench()
    bench.run("a")
    bench.event("a", tokens(0))
    assert bench.freed == 0
    bench.event("a", tokens(1, last=True))
    assert bench.bodies("a") == [Accepted("w"), tokens(0), tokens(1, last=True)]
    assert {frame.channel for frame in bench.frames} == {"c"}
    assert bench.freed == 1
    assert bench.dispatcher.counts() == (0, 0)


def test_a_job_nobody_watches_is_folded_into_its_answer() -> None:
    bench = Bench()
    delivery = bench.run("a", replies=False)
    bench.event("a", tokens(0))
    bench.event("a", tokens(1, special=True))
    assert delivery.outcomes == []
    bench.event("a", tokens(2, last=True))
    (answer,) = delivery.outcomes
    assert isinstance(answer, Answer)
    expected = {"generated_text": "<0><2>", "finish_reason": "length", "generated_tokens": 3, "tokens": [0, 1, 2]}
    assert answer.as_dict() == expected
    assert bench.frames == []


@pytest.mark.parametrize(
    ("body", "error"), [(Failed("generation", "broken"), GenerationFailed), (Cancelled(), JobCancelled)]
)
def test_a_job_nobody_watches_fails_in_celery(body: FrameBody, error: type[TgqError]) -> None:
    bench = Bench()
    delivery = bench.run("a", replies=False)
    bench.event("a", body)
    (outcome,) = delivery.outcomes
    assert isinstance(outcome, error)


def test_room_counts_jobs_and_tokens_and_keeps_the_reserve_from_batch() -> None:
    bench = Bench()
    assert bench.room() == (1000, [Room(10, 1000), Room(8, 1000)])
    bench.run("a", prompt=190)
    assert bench.room() == (1000, [Room(9, 800), Room(7, 600)])
    bench.event("a", tokens(0, last=True))
    assert bench.room() == (1000, [Room(10, 1000), Room(8, 1000)])


def test_batch_jobs_are_not_in_the_way_of_interactive_ones() -> None:
    bench = Bench()
    bench.run("a", prompt=190, job_class="batch")
    assert bench.room() == (1000, [Room(10, 1000), Room(7, 600)])
    bench.run("b", prompt=90)
    assert bench.room() == (1000, [Room(9, 900), Room(6, 500)])
    bench.event("a", tokens(0, last=True))
    assert bench.room() == (1000, [Room(9, 900), Room(7, 700)])


def test_overdue_batch_work_is_interactive_from_its_pull_on() -> None:
    bench = Bench()
    bench.dispatcher.overdue("tag-a")
    bench.run("a", prompt=190, job_class="batch")
    assert bench.room() == (1000, [Room(9, 800), Room(7, 600)])
    assert [job.job_class for job in bench.engine.jobs] == ["interactive"]
    # Only this one, and only in this pull.
    bench.run("b", prompt=90, job_class="batch")
    bench.event("a", tokens(0, last=True))
    bench.run("a", prompt=190, job_class="batch", attempt=2)
    assert [job.job_class for job in bench.engine.jobs[1:]] == ["batch", "batch"]


def test_jobs_count_with_what_answers_use_not_with_what_they_ask_for() -> None:
    bench = Bench()
    bench.run("cautious", prompt=10, new=400)
    assert bench.room()[1][0] == Room(9, 590)  # Nothing is known of answers yet.
    for number in range(SEEN_ENOUGH):
        bench.run(f"r{number}")
        bench.event(f"r{number}", Tokens(19, [], Finish("eos_token", 20, 0.1)))
    bench.event("cautious", tokens(0, last=True))
    answer = bench.dispatcher.room(QUEUES).answer
    assert 20 <= answer < 60
    bench.run("usual", prompt=10, new=400)
    assert bench.room()[1][0] == Room(9, 1000 - 10 - answer)
    # One that goes on for longer is counted with more, in the end with all it may have.
    for offset, expected in ((answer, answer), (answer + 1, 2 * answer), (2 * answer, 2 * answer), (399, 400)):
        for _ in range(6 if expected == 400 else 1):
            bench.event("usual", Tokens(offset, []))
        assert bench.room()[1][0] == Room(9, 1000 - 10 - expected)
    bench.event("usual", tokens(0, last=True))
    assert bench.room()[1][0] == Room(10, 1000)


def test_an_engine_that_reserves_has_room_for_the_longest_answers_only() -> None:
    bench = Bench()
    bench.dispatcher.on_ready(Ready(msgspec.structs.replace(CARD, reserves_answers=True)))
    for number in range(SEEN_ENOUGH):
        bench.run(f"r{number}")
        bench.event(f"r{number}", Tokens(19, [], Finish("eos_token", 20, 0.1)))
    assert bench.dispatcher.room(QUEUES).answer == UNKNOWN
    bench.run("long", prompt=10, new=400)
    assert bench.room()[1][0] == Room(9, 590)


def test_preemptions_make_it_take_less() -> None:
    bench = Bench()
    for number in range(SEEN_ENOUGH):
        bench.run(f"r{number}")
        bench.event(f"r{number}", Tokens(19, [], Finish("eos_token", 20, 0.1)))
    answers = [bench.dispatcher.room(QUEUES).answer]
    for preemptions in (1, 2, 2):
        bench.dispatcher.on_output(EngineOutput([], EngineStats(preemptions=preemptions)))
        answers.append(bench.dispatcher.room(QUEUES).answer)
    calm, first, second, after = answers
    assert calm < first < second > after > first


def test_children_take_room_each_and_end_their_request_together() -> None:
    bench = Bench()
    delivery = bench.run("a", prompt=190, children=3, replies=False)
    assert bench.room() == (1000, [Room(7, 400), Room(5, 200)])
    for child in (1, 0, 2):
        bench.event("a", Tokens(0, [Token(child, f"<{child}>", None, False)], None, child))
    for unfinished, child in ((2, 2), (1, 1)):
        bench.event("a", Tokens(1, [], Finish("length", 1, 0.1), child, unfinished))
    assert delivery.outcomes == []
    bench.event("a", Tokens(1, [], Finish("length", 1, 0.1), 0))
    (answer,) = delivery.outcomes
    assert isinstance(answer, Answer)
    alone = {"finish_reason": "length", "generated_tokens": 1}
    assert answer.as_dict() == {
        **alone,
        "generated_text": "<0>",
        "tokens": [0],
        "siblings": [{**alone, "generated_text": f"<{n}>", "tokens": [n]} for n in (1, 2)],
    }
    assert bench.room() == (1000, [Room(10, 1000), Room(8, 1000)])


def test_there_is_no_room_while_closed_loading_or_restarting() -> None:
    none = (0, [Room(0, 0), Room(0, 0)])
    assert Bench(ready=False).room() == none
    bench = Bench()
    bench.dispatcher.on_lost("x")
    assert bench.room() == none
    bench.dispatcher.on_ready(Ready(CARD))
    assert bench.room() != none
    bench.dispatcher.close()
    assert bench.room() == none


@pytest.mark.parametrize("replies", [True, False])
def test_what_can_never_fit_is_refused(replies: bool) -> None:
    bench = Bench()
    delivery = bench.hold("a", replies=replies, prompt=495)
    bench.dispatcher.give()
    assert bench.engine.given == []
    if replies:
        (body,) = bench.bodies("a")
        assert isinstance(body, Failed)
        assert body.error_type == "validation"
        assert delivery.outcomes == [None]
    else:
        assert isinstance(delivery.outcomes[0], InvalidRequest)


class TestRepeats:
    def test_the_same_attempt_of_a_running_job_is_dropped(self) -> None:
        bench = Bench()
        bench.run("a")
        again = bench.hold("a")
        bench.dispatcher.give()
        assert bench.engine.given == ["a"]
        assert again.outcomes == [None]

    def test_a_job_nobody_watches_keeps_one_open_message(self) -> None:
        """Both deliveries have one delivery tag: acknowledging the copy would lose the job in a crash."""
        bench = Bench()
        first = bench.run("a", replies=False)
        again = bench.hold("a", replies=False)
        bench.dispatcher.give()
        assert again.outcomes == []
        bench.event("a", tokens(0, last=True))
        assert len(again.outcomes) == 1
        assert first.outcomes == []

    def test_of_two_messages_of_an_attempt_one_is_kept_open(self) -> None:
        """A submitter that cannot know whether its message is lost sends another one."""
        bench = Bench()
        first = bench.hold("a")
        copy = FakeDelivery("another tag")
        bench.dispatcher.hold(bench.job("a"), copy)
        assert (first.outcomes, copy.outcomes) == ([None], [])

    def test_older_and_ended_attempts_are_dropped(self) -> None:
        bench = Bench()
        bench.run("a", attempt=2)
        assert bench.hold("a", attempt=1).outcomes == [None]
        bench.event("a", tokens(0, last=True), attempt=2)
        assert bench.hold("a", attempt=2).outcomes == [None]
        assert bench.hold("a", attempt=3).outcomes == []

    def test_a_newer_attempt_replaces_the_running_one(self) -> None:
        bench = Bench()
        bench.run("a")
        bench.run("a", attempt=2)
        assert bench.engine.given == ["a", "a"]
        assert bench.engine.cancelled == ["a"]
        seen = len(bench.frames)
        bench.event("a", Cancelled(), attempt=1)
        bench.event("a", tokens(5), attempt=1)
        assert len(bench.frames) == seen
        assert bench.dispatcher.counts() == (1, 0)


class TestCancel:
    def test_before_the_engine_has_it(self) -> None:
        bench = Bench()
        delivery = bench.hold("a")
        bench.dispatcher.cancel("a")
        bench.dispatcher.give()
        assert bench.engine.given == []
        assert bench.bodies("a") == [Cancelled()]
        assert delivery.outcomes == [None]
        assert bench.freed == 1

    def test_in_the_engine_it_ends_when_the_engine_says_so(self) -> None:
        bench = Bench()
        bench.run("a")
        bench.dispatcher.cancel("a")
        assert bench.engine.cancelled == ["a"]
        assert bench.bodies("a") == [Accepted("w")]
        bench.event("a", Cancelled())
        assert bench.bodies("a")[-1] == Cancelled()

    def test_of_lower_attempts_only(self) -> None:
        bench = Bench()
        bench.run("a", attempt=2)
        bench.dispatcher.cancel("a", below=2)
        assert bench.engine.cancelled == []
        bench.dispatcher.cancel("a", below=3)
        assert bench.engine.cancelled == ["a"]

    def test_all_of_a_channel(self) -> None:
        bench = Bench()
        bench.run("a")
        bench.run("b", replies=False)
        bench.dispatcher.cancel_channel("c")
        assert bench.engine.cancelled == ["a"]

    def test_unknown_requests_are_nothing(self) -> None:
        bench = Bench()
        bench.dispatcher.cancel("nobody")
        assert (bench.frames, bench.engine.cancelled) == ([], [])

    def test_celery_ended_the_task_itself(self) -> None:
        bench = Bench()
        delivery = bench.run("a", replies=False)
        bench.dispatcher.abandon("a", FakeDelivery("other"))
        assert bench.dispatcher.counts() == (1, 0)
        bench.dispatcher.abandon("a", delivery)
        assert bench.engine.cancelled == ["a"]
        assert bench.dispatcher.counts() == (0, 0)
        assert delivery.outcomes == []


class TestEngineLoss:
    def test_watched_jobs_fail_retryably_and_the_others_are_given_again(self) -> None:
        bench = Bench()
        bench.run("accepted")
        given = bench.hold("given")
        unwatched = bench.hold("unwatched", replies=False)
        bench.dispatcher.give()
        bench.hold("waiting")
        bench.dispatcher.on_lost("killed")
        bench.dispatcher.give()
        failed = Failed("generation", "Request failed during generation: killed", retryable=True)
        assert bench.bodies("accepted")[1:] == bench.bodies("given") == [failed]
        assert given.outcomes == [None]
        assert unwatched.outcomes == []
        assert bench.engine.given == ["accepted", "given", "unwatched"]
        bench.dispatcher.on_ready(Ready(CARD))
        assert sorted(bench.engine.given[3:]) == ["unwatched", "waiting"]

    def test_suspects_come_back_one_at_a_time(self) -> None:
        bench = Bench()
        for request in ("a", "b", "c"):
            bench.hold(request, replies=False)
        bench.dispatcher.give()
        bench.dispatcher.on_lost("killed")
        bench.dispatcher.on_ready(Ready(CARD))
        assert bench.engine.given[3:] == ["a"]
        bench.event("a", Accepted(""))
        assert bench.engine.given[3:] == ["a"]
        bench.event("a", tokens(0, last=True))
        assert bench.engine.given[3:] == ["a", "b"]
        bench.event("b", Failed("validation", "x"))
        assert bench.engine.given[3:] == ["a", "b", "c"]

    def test_those_one_loss_from_their_end_run_one_at_a_time(self) -> None:
        bench = Bench()
        for request in ("fresh", "a", "b"):
            bench.hold(request)
        bench.dispatcher.suspect("a")
        bench.dispatcher.suspect("b")
        bench.dispatcher.on_ready(Ready(CARD))
        assert bench.engine.given == []  # Nothing begins before it is known what to think of it.
        bench.dispatcher.give()
        assert bench.engine.given == ["fresh", "a"]
        bench.event("a", Accepted(""))
        bench.dispatcher.on_lost("killed")
        bench.dispatcher.on_ready(Ready(CARD))
        assert bench.engine.given == ["fresh", "a", "b"]
        assert bench.bodies("b") == []

    def test_the_poison_ends_alone(self) -> None:
        bench = Bench(max_attempts=2)
        deliveries = {request: bench.run(request, replies=False) for request in ("good", "poison")}
        for _ in range(2):
            bench.dispatcher.on_lost("killed")
            bench.dispatcher.on_ready(Ready(CARD))
            if "good" in bench.dispatcher.requests():
                assert bench.engine.given[-1] == "good"
                bench.event("good", tokens(0, last=True))
            assert bench.engine.given[-1] == "poison"
        (answer,) = deliveries["good"].outcomes
        assert isinstance(answer, Answer)
        assert answer.as_dict()["tokens"] == [0]
        (error,) = deliveries["poison"].outcomes
        assert isinstance(error, GenerationFailed)

    def test_figures_go_on_counting(self) -> None:
        bench = Bench()
        for _ in range(2):
            stats = EngineStats(running=3, generated_tokens=5, inference_count={"decode": 2})
            bench.dispatcher.on_output(EngineOutput([], stats))
            bench.dispatcher.on_lost("killed")
        total = bench.dispatcher.stats.total()
        assert (total.running, total.generated_tokens, total.inference_count) == (0, 10, {"decode": 4})

    def test_no_figure_is_forgotten(self) -> None:
        """A field added to `EngineStats` must be added up here too."""
        values: dict[str, Any] = {}
        for field in msgspec.structs.fields(EngineStats):
            if field.name.endswith(("_count", "_success", "_failure")):
                values[field.name] = {"x": 1}
            elif field.name.endswith("_seconds"):
                values[field.name] = {"x": Histogram([1, 2], 3.0)}
            else:
                values[field.name] = Histogram([1], 1.0) if field.name == "batch_size" else 1
        totals = StatsTotals()
        totals.update(EngineStats(**values))
        assert totals.total() == EngineStats(**values)
        totals.engine_lost()
        totals.update(EngineStats(**values))
        assert totals.total().inference_seconds == {"x": Histogram([2, 4], 6.0)}


class TestStop:
    def test_unaccepted_jobs_are_taken_back_in_order_and_never_heard_of_again(self) -> None:
        bench = Bench()
        bench.run("running")
        for request in ("a", "b"):
            bench.hold(request)
            bench.dispatcher.give()
        bench.hold("c")
        bench.dispatcher.close()
        assert bench.dispatcher.take_back() == ["tag-a", "tag-b", "tag-c"]
        assert bench.engine.cancelled == ["a", "b"]
        bench.event("a", Accepted(""))
        bench.event("a", Cancelled())
        assert bench.bodies("a") == []
        assert bench.dispatcher.requests() == ["running"]
        # Given back, not ended: this worker may be handed them again.
        assert bench.hold("a").outcomes == []

    def test_watched_jobs_are_handed_over_at_once(self) -> None:
        bench = Bench()
        bench.run("watched")
        bench.event("watched", tokens(0))
        waiting = bench.hold("waiting")
        unwatched = bench.run("unwatched", replies=False)
        waiting_again = bench.hold("waiting")
        assert bench.dispatcher.hand_over("stopped") == 2
        body = bench.bodies("watched")[-1]
        assert body == Failed("generation", "Request failed during generation: stopped", True, True)
        assert bench.bodies("waiting") == [body]
        assert bench.engine.cancelled == ["watched", "waiting"]
        assert (waiting.outcomes, waiting_again.outcomes, unwatched.outcomes) == ([], [None], [])
        bench.event("watched", tokens(1))
        assert bench.bodies("watched")[-1] == body
        assert bench.dispatcher.requests() == ["unwatched"]
        assert bench.dispatcher.hand_over("stopped") == 0


class TestReaped:
    """Others have the job of a worker that was away."""

    def test_what_is_not_accepted_or_not_watched_is_let_go(self) -> None:
        bench = Bench()
        bench.run("watched")
        given = bench.hold("given")
        bench.dispatcher.give()
        unwatched = bench.run("unwatched", replies=False)
        open_deliveries = bench.dispatcher.open_deliveries()
        assert [entry.request for entry in open_deliveries] == ["given", "unwatched"]
        for entry in open_deliveries:
            bench.dispatcher.reaped(entry)
        assert bench.dispatcher.requests() == ["watched"]
        assert bench.engine.cancelled == ["given", "unwatched"]
        assert bench.bodies("given") == []
        for delivery in (given, unwatched):
            (outcome,) = delivery.outcomes
            assert isinstance(outcome, JobReturned)
        # It may come here again.
        assert bench.hold("given").outcomes == []

    def test_one_accepted_meanwhile_is_handed_over(self) -> None:
        bench = Bench()
        bench.hold("a")
        bench.dispatcher.give()
        (entry,) = bench.dispatcher.open_deliveries()
        bench.event("a", Accepted(""))
        bench.dispatcher.reaped(entry)
        body = bench.bodies("a")[-1]
        assert isinstance(body, Failed)
        assert (body.retryable, body.handed_over) == (True, True)

    def test_one_that_came_back_stays(self) -> None:
        bench = Bench()
        bench.hold("a")
        (entry,) = bench.dispatcher.open_deliveries()
        bench.hold("a")
        bench.dispatcher.reaped(entry)
        assert bench.dispatcher.requests() == ["a"]
