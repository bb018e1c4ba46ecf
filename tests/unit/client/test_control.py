from __future__ import annotations

import pytest

from common.client import control
from common.client.control import ControlSender
from common.keys import Keys
from common.redis_clients import async_redis
from common.settings import Settings


async def test_cancels_that_wait_for_redis_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(control, "CANCELS_KEPT", 3)
    sender = ControlSender(async_redis(Settings.of(redis_url="redis://127.0.0.1:1/0")), Keys())
    for number in range(5):
        sender.cancel(f"request-{number}", "queue", b"secret prompt", 1)
    assert sender.pending == 3
    assert len(caplog.records) == 2
    assert "secret" not in caplog.text


async def test_one_cancel_a_request() -> None:
    sender = ControlSender(async_redis(Settings.of(redis_url="redis://127.0.0.1:1/0")), Keys())
    sender.cancel("request", "queue", b"message", 1)
    sender.cancel("request", "queue", None, 1)
    assert sender.pending == 1


async def test_a_worker_is_told_once_a_second_and_of_so_many_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "DISOWNS_KEPT", 2)
    sender = ControlSender(async_redis(Settings.of(redis_url="redis://127.0.0.1:1/0")), Keys())
    said = []
    for moment, worker, below in (
        (0.0, "a", 2),
        (0.9, "a", 2),  # Said just now.
        (0.9, "a", 3),  # News.
        (0.9, "b", 2),
        (0.9, "c", 2),  # Too many; the next frame says it again.
        (2.0, "c", 2),
        (2.0, "a", 3),
    ):
        before = sender.pending
        sender.disown(worker, "request", below, moment)
        said.append(sender.pending > before)
    assert said == [True, False, True, True, False, True, True]
