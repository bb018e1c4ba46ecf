from __future__ import annotations

import pytest

from common.client import attempts as module
from common.client.attempts import Attempts
from common.client.hearing import ANSWER_SECONDS, ASK_SECONDS, SILENCE_ASK_SECONDS, Hearing
from common.client.progress import Progress
from common.parameters import GenerationParameters
from common.wire import Job, Token, Tokens


def _job() -> Job:
    return Job(
        id="r",
        model="m",
        prompt_ids=[1],
        parameters=GenerationParameters(max_new_tokens=9, seed=1, children=2),
        submitted_at=0.0,
        deadline=5.0,
    )


def _arrives(progress: Progress, number: int) -> None:
    progress.take(Tokens(len(progress.ids[0]), [Token(number, "x", None, False)]))


def test_the_next_attempt_goes_on_from_the_tokens_so_far() -> None:
    job = _job()
    progress = Progress(job)
    attempts = Attempts(job, progress, 3)
    _arrives(progress, 7)
    attempts.lost("w", "of the weather", counts=True)
    second = attempts.next(9.0)
    assert (second.attempt, second.generated_ids, second.sibling_ids, second.deadline) == (2, [7], [[]], 9.0)
    _arrives(progress, 8)
    assert second.generated_ids == [7]
    attempts.lost("v", "of the weather", counts=False)
    assert attempts.next(9.0).generated_ids == [7, 8]
    attempts.lost(None, "nobody had it", counts=True)
    assert (attempts.losses, attempts.forgets) == ([], False)
    assert attempts.epitaph == "given up after 3 lost attempts, the last because nobody had it"


def test_losses_count_until_a_new_token_comes() -> None:
    progress = Progress(_job())
    attempts = Attempts(_job(), progress, 3)
    told = []
    for number, worker in enumerate("abcd"):
        if worker != "b":
            _arrives(progress, number)
        attempts.lost(worker, "it died", counts=True)
        told.append((attempts.losses.copy(), attempts.forgets))
        attempts.next(9.0)
    assert told == [(["1:a"], True), (["1:a", "2:b"], False), (["3:c"], True), (["4:d"], True)]
    assert not attempts.exhausted


def test_a_request_that_gets_on_may_not_cost_workers_for_ever() -> None:
    progress = Progress(_job())
    attempts = Attempts(_job(), progress, 3)
    for number in range(module.MOST_LOSSES):
        assert not attempts.exhausted
        _arrives(progress, number)
        attempts.lost("w", "it died", counts=True)
    assert attempts.exhausted
    assert f"given up after {module.MOST_LOSSES} lost attempts" in attempts.epitaph


def test_attempts_that_bring_nothing_come_slower_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRUITLESS_ATTEMPTS", 7)
    progress = Progress(_job())
    attempts = Attempts(_job(), progress, 3)
    pauses = []
    for _ in range(6):
        attempts.lost("w", "it was so", counts=False)
        pauses.append(attempts.pause)
    assert pauses == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0]
    ended = [attempts.exhausted]
    attempts.lost("w", "it was so", counts=False)
    ended.append(attempts.exhausted)
    assert ended == [False, True]
    assert "7 lost attempts" in attempts.epitaph
    _arrives(progress, 1)
    attempts.lost("w", "it was so", counts=False)
    assert (attempts.exhausted, attempts.pause) == (False, 0.0)


def test_questions_are_asked_seldom_and_sooner_when_something_is_known_to_be_missing() -> None:
    hearing = Hearing(0.0)
    assert not hearing.question_due(100.0, accepted=False)
    assert not hearing.question_due(SILENCE_ASK_SECONDS - 0.1, accepted=True)
    assert hearing.question_due(SILENCE_ASK_SECONDS, accepted=True)
    hearing.progressed(10.0)
    assert hearing.gap(10.5)
    assert not hearing.gap(10.6)
    assert hearing.question_due(10.0 + ASK_SECONDS, accepted=True)
    hearing.asked(11.0, expects_answer=True)
    assert not hearing.question_due(11.5, accepted=True)
    assert hearing.question_due(11.0 + ASK_SECONDS, accepted=True)
    hearing.progressed(11.0)
    assert not hearing.question_due(11.0 + ASK_SECONDS, accepted=True)
    assert hearing.gap(11.5)
    hearing.missed(20.0)
    assert hearing.question_due(20.0, accepted=False)
    hearing.progressed(20.5)
    assert not hearing.question_due(20.0 + 2 * ASK_SECONDS, accepted=False)


def test_a_worker_has_time_to_answer_and_to_close_a_gap() -> None:
    hearing = Hearing(0.0)
    hearing.asked(1.0, expects_answer=True)
    hearing.asked(2.0, expects_answer=True)
    assert not hearing.unanswered(1.0 + ANSWER_SECONDS)
    assert hearing.unanswered(1.1 + ANSWER_SECONDS)
    hearing.answered()
    assert not hearing.unanswered(1.1 + ANSWER_SECONDS)
    hearing.gap(10.0)
    hearing.answered()
    assert hearing.unanswered(10.1 + ANSWER_SECONDS)
    # Neither the time without a subscription counts nor that of a process that stands still.
    hearing.missed(30.0)
    assert not hearing.unanswered(30.0 + ANSWER_SECONDS)
    hearing.paused(60.0)
    assert not hearing.unanswered(90.0 + ANSWER_SECONDS)
    assert hearing.unanswered(90.1 + ANSWER_SECONDS)
    assert hearing.progress_at == 60.0
