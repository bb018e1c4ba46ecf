from __future__ import annotations

import random

from common.client.frame_order import FRAMES_AHEAD, FrameOrder
from common.wire import Accepted, Frame, FrameBody, Token, Tokens


def _frame(sequence: int, *, attempt: int = 1) -> Frame:
    body: FrameBody = Accepted("w") if sequence == 0 else Tokens(sequence - 1, [Token(sequence, "x", None, False)])
    return Frame("r", attempt, sequence, body)


def _push_all(order: FrameOrder, frames: list[Frame], worker: str = "w") -> list[FrameBody]:
    return [body for frame in frames for body in order.push(worker, frame)]


def test_frames_in_order_pass_through_one_by_one() -> None:
    order = FrameOrder(1)
    assert [list(order.push("w", _frame(i))) for i in range(3)] == [[_frame(i).body] for i in range(3)]
    assert (order.next_sequence, order.worker, order.gap) == (3, "w", False)


def test_any_arrival_order_with_doubles_gives_each_body_once_and_in_order() -> None:
    expected = [_frame(i).body for i in range(50)]
    for seed in range(20):
        noise = random.Random(seed)
        frames = [_frame(i) for i in range(50) for _ in range(noise.randint(1, 3))]
        noise.shuffle(frames)
        order = FrameOrder(1)
        assert _push_all(order, frames) == expected
        assert not order.gap


def test_a_gap_holds_later_frames_back_until_it_is_closed() -> None:
    order = FrameOrder(1)
    assert _push_all(order, [_frame(0), _frame(2), _frame(3)]) == [_frame(0).body]
    assert order.gap
    assert order.next_sequence == 1
    assert list(order.push("w", _frame(1))) == [_frame(i).body for i in (1, 2, 3)]
    assert not order.gap


def test_frames_of_other_attempts_are_dropped() -> None:
    order = FrameOrder(2)
    assert _push_all(order, [_frame(0, attempt=1), _frame(0, attempt=3)]) == []
    assert order.worker is None
    assert _push_all(order, [_frame(0, attempt=2)]) == [_frame(0).body]


def test_a_second_worker_takes_over_with_its_acceptance_only() -> None:
    order = FrameOrder(1)
    _push_all(order, [_frame(0), _frame(1), _frame(5)], "first")
    assert _push_all(order, [_frame(2)], "second") == []
    assert order.worker == "first"
    assert _push_all(order, [_frame(0), _frame(1)], "second") == [_frame(0).body, _frame(1).body]
    assert (order.worker, order.next_sequence, order.gap) == ("second", 2, False)
    assert _push_all(order, [_frame(2)], "first") == []


def test_frames_behind_a_gap_are_bounded() -> None:
    order = FrameOrder(1)
    _push_all(order, [_frame(i) for i in range(1, FRAMES_AHEAD + 100)])
    assert len(order.push("w", _frame(0))) == FRAMES_AHEAD + 1
    assert order.next_sequence == FRAMES_AHEAD + 1
