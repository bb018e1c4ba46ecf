"""A worker that is told to stop: nothing is lost, and nobody waits longer than asked for."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from common.wire import Accepted, Failed, Frame, Tokens
from ops.embedded_redis import EmbeddedRedis
from tests.integration.workers.support import Submitter, WorkerProcess, until, worker

HANDED_OVER = Failed("generation", "Request failed during generation: the worker was told to stop", True, True)
HAND_OVER_SECONDS = 20.0
AT_ONCE: dict[str, Any] = {"on_sigterm": "hand_over", "graceful_termination_timeout": 60.0}
SLOW: dict[str, Any] = {"step_seconds": 0.02, "tokens": 20_000}


def running(submitter: Submitter, request: str, attempt: int = 1) -> list[Frame]:
    """Wait for a request's first token."""
    frames = submitter.frames[request, attempt]
    until(lambda: len(frames) > 1, what=f"tokens of {request}")
    return frames


def draining(submitter: Submitter, process: WorkerProcess) -> bool:
    record = process.record(submitter)
    return record is not None and record.state == "draining"


def handed_over_after(submitter: Submitter, process: WorkerProcess, *requests: str) -> float:
    """Signal the worker; seconds until the last of the requests was handed over."""
    process.terminate()
    told_at = time.monotonic()
    for request in requests:
        assert submitter.wait(request).body == HANDED_OVER
    return time.monotonic() - told_at


def settled(submitter: Submitter, worker_id: str) -> bool:
    """Whether nothing in Redis is the worker's."""
    keys = submitter.keys
    mine = (keys.unacked(worker_id), keys.unacked_index(worker_id), keys.worker(worker_id))
    return not submitter.client.exists(*mine) and submitter.client.zscore(keys.workers, worker_id) is None


def test_alone_it_finishes_what_runs_and_returns_what_waits(
    submitter: Submitter, redis_url: str, tmp_path: Path
) -> None:
    with worker(redis_url, tmp_path, {"graceful_termination_timeout": 60.0}, slots=2, step_seconds=0.02) as process:
        record = process.ready(submitter)
        for name, tokens in (("a", 150), ("b", 150), ("c", 50), ("d", 50)):
            submitter.submit(name, tokens)
        running(submitter, "b")
        process.terminate()
        submitter.submit("e")
        until(lambda: draining(submitter, process))
        assert process.wait() == 0
        for name in ("a", "b"):
            assert isinstance(submitter.wait(name).body, Tokens)
            assert submitter.text(name) == "".join(f"{index} " for index in range(150))
        assert submitter.waiting() == 3
        assert settled(submitter, record.id)
    with worker(redis_url, tmp_path, slots=1, step_seconds=0.0) as process:
        for name in ("c", "d", "e"):
            submitter.wait(name)
        assert [line[1] for line in process.noted("start")] == ["a", "b", "c", "d", "e"]


def test_it_hands_over_as_soon_as_another_worker_takes_requests(
    submitter: Submitter, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    with worker(redis_url, tmp_path, {"graceful_termination_timeout": 120.0}, **SLOW) as process:
        record = process.ready(submitter)
        submitter.submit("watched", 15_000)
        running(submitter, "watched")
        process.terminate()
        until(lambda: draining(submitter, process))
        seen = len(submitter.frames["watched", 1])
        until(lambda: len(submitter.frames["watched", 1]) > seen + 10)
        with worker(redis_url, tmp_path / "other", **SLOW) as other:
            other.ready(submitter)
            assert submitter.wait("watched", timeout=HAND_OVER_SECONDS).body == HANDED_OVER
            assert process.wait() == 0
            assert settled(submitter, record.id)
            submitter.submit("watched", 4, attempt=2)
            assert isinstance(submitter.wait("watched", 2).body, Tokens)


def test_of_two_workers_told_to_stop_at_once_one_finishes(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    directories = [tmp_path / name for name in ("first", "second")]
    for directory in directories:
        directory.mkdir()
    patient = {"graceful_termination_timeout": 60.0}
    processes = [WorkerProcess(redis_url, directory, patient, slots=1, step_seconds=0.02) for directory in directories]
    try:
        for process in processes:
            process.ready(submitter)
        for name in ("a", "b"):
            submitter.submit(name, 100)
        for name in ("a", "b"):
            running(submitter, name)
        for process in processes:
            process.terminate()
        ends = [submitter.wait(name).body for name in ("a", "b")]
        assert [process.wait() for process in processes] == [0, 0]
        assert [isinstance(end, Tokens) for end in ends].count(True) >= 1
        assert all(isinstance(end, Tokens) or end == HANDED_OVER for end in ends)
    finally:
        for process in processes:
            process.kill()


class TestHandOver:
    def test_running_requests_leave_at_once(self, submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
        with worker(redis_url, tmp_path, AT_ONCE, **SLOW) as process:
            record = process.ready(submitter)
            for name in ("a", "b"):
                submitter.submit(name, 5000)
                running(submitter, name)
            assert handed_over_after(submitter, process, "a", "b") < HAND_OVER_SECONDS
            for name in ("a", "b"):
                frames = submitter.frames[name, 1]
                assert [frame.sequence for frame in frames] == list(range(len(frames)))
                generated = sum(len(frame.body.tokens) for frame in frames if isinstance(frame.body, Tokens))
                assert submitter.text(name) == "".join(f"{index} " for index in range(generated))
            assert process.wait(HAND_OVER_SECONDS) == 0
            assert settled(submitter, record.id)

    def test_nobody_else_goes_on_with_what_nobody_watches(
        self, submitter: Submitter, redis_url: str, tmp_path: Path
    ) -> None:
        with worker(redis_url, tmp_path, AT_ONCE, **SLOW) as process:
            process.ready(submitter)
            submitter.submit("unwatched", 100, replies=False)
            submitter.submit("watched", 5000)
            running(submitter, "watched")
            assert handed_over_after(submitter, process, "watched") < HAND_OVER_SECONDS
            assert process.wait() == 0
            assert [line[1] for line in process.noted("end")] == ["unwatched"]
            assert submitter.waiting() == 0

    def test_what_the_engine_has_not_accepted_goes_back(
        self, submitter: Submitter, redis_url: str, tmp_path: Path
    ) -> None:
        with worker(redis_url, tmp_path, AT_ONCE) as process:
            record = process.ready(submitter)
            submitter.submit("hung", 5, faults=["hang_at:2"])
            until(lambda: process.noted("hang"))
            for name in ("a", "b"):
                submitter.submit(name)
            until(lambda: (now := process.record(submitter)) is not None and now.waiting == 2)
            assert handed_over_after(submitter, process, "hung") < HAND_OVER_SECONDS
            assert process.wait() == 0
            assert submitter.waiting() == 2
            assert not submitter.frames["a", 1]
            assert settled(submitter, record.id)


def test_finish_does_not_look_at_other_workers(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    patient = {"on_sigterm": "finish", "graceful_termination_timeout": 60.0}
    with worker(redis_url, tmp_path, patient, **SLOW) as process:
        process.ready(submitter)
        with worker(redis_url, tmp_path / "other", **SLOW) as other:
            other.ready(submitter)
            other.freeze()  # takes nothing
            submitter.submit("watched", 150)
            running(submitter, "watched")
            other.thaw()
            other.ready(submitter)
            process.terminate()
            assert isinstance(submitter.wait("watched").body, Tokens)
            assert process.wait() == 0
            assert not other.noted("start")


def test_after_the_grace_period_the_rest_is_handed_over(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, tmp_path, {"graceful_termination_timeout": 1.0}, **SLOW) as process:
        process.ready(submitter)
        # The other is accepted when this one's first token is here; what is not accepted yet would go back.
        submitter.submit("unwatched", 5000, replies=False)
        submitter.submit("watched", 5000)
        running(submitter, "watched")
        process.terminate()
        assert process.wait() == 0
        assert submitter.wait("watched").body == HANDED_OVER
        # Nobody watches the other one: it is back in line.
        assert submitter.waiting() == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_stops_now(
    submitter: Submitter, redis_url: str, tmp_path: Path, number: signal.Signals
) -> None:
    with worker(redis_url, tmp_path, {"graceful_termination_timeout": 60.0}, **SLOW) as process:
        process.ready(submitter)
        submitter.submit("long", 5000)
        submitter.submit("unwatched", 5000, replies=False)
        running(submitter, "long")
        process.terminate()
        until(lambda: draining(submitter, process))
        process.process.send_signal(number)
        assert submitter.wait("long", timeout=HAND_OVER_SECONDS).body == HANDED_OVER
        assert process.wait(HAND_OVER_SECONDS) == 0
        assert submitter.waiting() == 1


def test_a_frozen_engine_does_not_hold_it_up(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, tmp_path, AT_ONCE, **SLOW) as process:
        record = process.ready(submitter)
        submitter.submit("long", 5000)
        assert isinstance(running(submitter, "long")[0].body, Accepted)
        process.freeze_engine(record)
        assert handed_over_after(submitter, process, "long") < HAND_OVER_SECONDS
        assert process.wait() == 0
        until(lambda: not Path(f"/proc/{record.engine_pid}").exists())


def test_while_redis_is_away(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "redis") as server:
        submitter = Submitter(server.url)
        with worker(server.url, tmp_path, step_seconds=0.02) as process:
            process.ready(submitter)
            server.kill()
            time.sleep(0.5)  # Let it notice.
            process.terminate()
            assert process.wait() == 0
        submitter.close()
