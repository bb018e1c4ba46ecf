from __future__ import annotations

import logging

import pytest

from common import logs
from common.logs import REPEAT_SECONDS, REPEATS, RepeatFilter


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(logs, "time", clock)
    return clock


def passed(
    filter_: RepeatFilter, count: int, message: object, *args: object, level: int = logging.WARNING
) -> list[object]:
    lines: list[object] = []
    for number in range(count):
        record = logging.LogRecord("here", level, "", 0, message, (number, *args) if args else (), None)
        if filter_.filter(record):
            lines.append(record.msg if isinstance(record.msg, dict) else record.getMessage())
    return lines


def test_what_repeats_is_told_seldom_and_counted(clock: Clock) -> None:
    told = RepeatFilter()
    lines = passed(told, 500, "%d jobs wait: %s", "ConnectionError")
    assert lines == [f"{number} jobs wait: ConnectionError" for number in range(REPEATS)]
    # Another kind has its own count; what is told of each request always passes.
    assert len(passed(told, 500, "something else")) == REPEATS
    assert len(passed(told, 500, {"event": "request"}, level=logging.INFO)) == 500
    clock.now += REPEAT_SECONDS + 1
    again = passed(told, 500, "%d jobs wait: %s", "TimeoutError")
    assert again[0] == f"0 jobs wait: TimeoutError ({500 - REPEATS} like it were not logged)"
    assert len(again) == REPEATS


def test_events_with_fields_are_one_kind(clock: Clock) -> None:
    told = RepeatFilter()
    assert sum(told.filter(_event(number)) for number in range(50)) == REPEATS
    clock.now += REPEAT_SECONDS + 1
    record = _event(50)
    assert told.filter(record)
    assert record.msg == {"event": "pull_failed", "number": 50, "unsaid": 50 - REPEATS}


def _event(number: int) -> logging.LogRecord:
    return logging.LogRecord("here", logging.WARNING, "", 0, {"event": "pull_failed", "number": number}, (), None)
