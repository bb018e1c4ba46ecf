"""Frames are numbered without a gap, remembered, bounded and never lost by a failed publish."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from common.wire import Accepted, Cancelled, Failed, Finish, Frame, FrameBody, Token, Tokens
from workers.outbox import KEEP_SECONDS, Outbox

ACCEPTED = Accepted("w")


def tokens(index: int, *, last: bool = False) -> Tokens:
    return Tokens(index, [Token(index, "x", None, special=False)], Finish("length", index + 1, 0.1) if last else None)


def numbers(messages: Iterable[tuple[str, list[Frame]]]) -> dict[str, list[tuple[str, int, int]]]:
    found: dict[str, list[tuple[str, int, int]]] = {}
    for channel, frames in messages:
        found.setdefault(channel, []).extend((frame.request, frame.attempt, frame.sequence) for frame in frames)
    return found


def test_numbers_each_attempt_from_zero_and_groups_by_channel() -> None:
    outbox = Outbox()
    outbox.add("one", "a", 1, ACCEPTED, 0.0)
    outbox.add("two", "b", 1, ACCEPTED, 0.0)
    outbox.add("one", "c", 2, ACCEPTED, 0.0)
    outbox.add("one", "a", 1, tokens(0), 0.0)
    outbox.add("one", "a", 2, ACCEPTED, 0.0)
    messages = outbox.take()
    assert len(messages) == 2
    assert numbers(messages) == {"one": [("a", 1, 0), ("a", 1, 1), ("c", 2, 0), ("a", 2, 0)], "two": [("b", 1, 0)]}
    assert outbox.take() == []
    outbox.add("one", "a", 1, tokens(1), 0.0)
    assert numbers(outbox.take()) == {"one": [("a", 1, 2)]}


def test_what_could_not_be_sent_goes_out_before_newer_frames() -> None:
    outbox = Outbox()
    outbox.add("one", "a", 1, ACCEPTED, 0.0)
    unsent = outbox.take()
    outbox.add("one", "a", 1, tokens(0), 0.0)
    outbox.put_back(unsent)
    assert numbers(outbox.take()) == {"one": [("a", 1, 0), ("a", 1, 1)]}


def test_long_waits_make_several_messages() -> None:
    outbox = Outbox(max_message=4)
    for index in range(10):
        outbox.add("one", str(index), 1, tokens(0), 0.0)
    messages = outbox.take()
    assert [len(frames) for _, frames in messages] == [4, 4, 2]
    assert [request for request, _, _ in numbers(messages)["one"]] == [str(index) for index in range(10)]


def test_tokens_that_wait_together_go_out_in_one_frame() -> None:
    outbox = Outbox()
    outbox.add("one", "a", 1, ACCEPTED, 0.0)
    for index in range(3):
        outbox.add("one", "a", 1, tokens(index), 0.0)
    [(_, frames)] = outbox.take()
    assert [frame.sequence for frame in frames] == [0, 1]
    assert frames[1].body == Tokens(0, [token for index in range(3) for token in tokens(index).tokens])
    outbox.add("one", "a", 1, tokens(3), 0.0)
    outbox.add("one", "a", 1, tokens(4, last=True), 0.0)
    [(_, frames)] = outbox.take()
    assert [frame.sequence for frame in frames] == [2]
    assert frames[0].body == Tokens(3, tokens(3).tokens + tokens(4).tokens, tokens(4, last=True).finish)


def test_a_frame_that_may_have_been_sent_does_not_change_any_more() -> None:
    outbox = Outbox()
    outbox.add("one", "a", 1, tokens(0), 0.0)
    unsent = outbox.take()
    outbox.put_back(unsent)
    outbox.add("one", "a", 1, tokens(1), 0.0)
    [(_, frames)] = outbox.take()
    assert frames == [*unsent[0][1], Frame("a", 1, 1, tokens(1))]


@pytest.mark.parametrize("last", [tokens(1, last=True), Failed("generation", "x"), Cancelled()])
def test_remembers_an_ended_attempt_until_released_or_too_old(last: FrameBody) -> None:
    for forget in ("release", "age"):
        outbox = Outbox()
        outbox.add("one", "a", 1, ACCEPTED, 0.0)
        outbox.add("one", "a", 1, last, 100.0)
        sent = outbox.take()
        assert outbox.resend("a", 1, 1)
        assert outbox.take() == [("one", sent[0][1][1:])]
        outbox.sweep(100.0 + KEEP_SECONDS)
        assert outbox.resend("a", 1, 0)
        if forget == "release":
            outbox.release("a")
        else:
            outbox.sweep(100.1 + KEEP_SECONDS)
        assert outbox.kept_tokens == 0
        outbox.take()
        assert not outbox.resend("a", 1, 0)
        assert outbox.take() == []


def test_a_running_attempt_is_neither_released_nor_swept() -> None:
    outbox = Outbox()
    outbox.add("one", "a", 1, ACCEPTED, 0.0)
    outbox.release("a")
    outbox.sweep(1e9)
    outbox.add("one", "a", 1, tokens(1), 1e9)
    assert numbers(outbox.take()) == {"one": [("a", 1, 0), ("a", 1, 1)]}


def test_resend_takes_any_sequence() -> None:
    outbox = Outbox()
    outbox.add("one", "a", 1, tokens(0), 0.0)
    outbox.take()
    assert outbox.resend("a", 1, 99)
    assert numbers(outbox.take()) in ({}, {"one": []})
    assert outbox.resend("a", 1, -5)
    assert numbers(outbox.take()) == {"one": [("a", 1, 0)]}
    assert not outbox.resend("a", 2, 0)
    assert not outbox.resend("b", 1, 0)


def test_memory_is_bounded_by_forgetting_the_oldest() -> None:
    outbox = Outbox(max_kept=10)
    for request in "abc":
        for index in range(5):
            outbox.add("one", request, 1, tokens(index), 0.0)
    assert outbox.kept_tokens == 10
    assert not outbox.resend("a", 1, 0)
    assert outbox.resend("b", 1, 0)


def test_a_channel_that_is_gone_takes_its_frames_along() -> None:
    outbox = Outbox()
    outbox.add("one", "a", 1, ACCEPTED, 0.0)
    outbox.add("two", "b", 1, ACCEPTED, 0.0)
    outbox.drop_channel("one")
    assert numbers(outbox.take()) == {"two": [("b", 1, 0)]}
    assert outbox.kept_tokens == 1


def test_children_join_their_own_frames_and_none_before_an_end() -> None:
    outbox = Outbox()

    def child(number: int, index: int, finish: Finish | None = None, unfinished: int = 0) -> Tokens:
        return Tokens(index, [Token(10 * number + index, "x", None, False)], finish, number, unfinished)

    end = Finish("length", 2, 0.1)
    for added in (child(0, 0), child(1, 0), child(0, 1), child(1, 1, end, 1), child(0, 2, end, 0)):
        outbox.add("one", "a", 1, added, 0.0)
    ((_, frames),) = outbox.take()
    shown = [
        (body.child, [token.id for token in body.tokens], body.ends)
        for frame in frames
        if isinstance(body := frame.body, Tokens)
    ]
    assert shown == [(0, [0, 1], False), (1, [10, 11], False), (0, [2], True)]
    assert [frame.sequence for frame in frames] == [0, 1, 2]
    # Only the last end is the request's, and what was handed out never changes.
    outbox.sweep(KEEP_SECONDS + 1)
    assert outbox.kept_tokens == 0
