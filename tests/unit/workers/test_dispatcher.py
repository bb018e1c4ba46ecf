"""Jobs between Celery and the engine: state, room, refusals, repeats, cancellation. No process, no Redis."""

from __future__ import annotations

import msgspec
import pytest

from common.errors import GenerationFailed, InvalidRequest, TgqError
from common.wire import (
    Accepted,
    Cancelled,
    EngineStats,
    Failed,
    Finish,
    FrameBody,
    Token,
    Tokens,
)
from tests.unit.workers.dispatching import CARD, QUEUES, Bench, FakeDelivery, tokens
from workers.answer import Answer, JobCancelled
from workers.answer_lengths import SEEN_ENOUGH, UNKNOWN
from workers.engine.messages import EngineOutput, Ready
from workers.transport import Room


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
