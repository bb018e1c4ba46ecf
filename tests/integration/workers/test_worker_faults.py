"""What happens when things die: processes are killed, connections cut, servers restarted."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from common.reaper import RESTART_GRACE_SECONDS
from common.wire import Accepted, Failed, Tokens
from ops.embedded_redis import EmbeddedRedis
from tests.integration.workers.support import Submitter, WorkerProcess, until, worker

QUICK = {"heartbeat_seconds": 0.1, "worker_dead_after": 1.0, "max_attempts": 100}


def past_restart_grace(submitter: Submitter) -> None:
    """The reaper does nothing right after a Redis start."""
    until(lambda: int(submitter.client.info("server")["uptime_in_seconds"]) >= RESTART_GRACE_SECONDS, 30)


def test_kill_9_loses_nothing(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    """Ten workers killed under load: every job runs to its end, or its submitter knows who had it."""
    past_restart_grace(submitter)
    stand_in = {"slots": 4, "step_seconds": 0.004}
    workers = [WorkerProcess(redis_url, tmp_path, QUICK, **stand_in) for _ in range(2)]
    watched: list[str] = []
    unwatched: list[str] = []
    try:
        for round_number in range(10):
            for number in range(30):
                request = f"{round_number}-{number}"
                (watched if number % 2 else unwatched).append(request)
                submitter.submit(request, 10, replies=bool(number % 2))
            victim = workers.pop(0)
            await_starts(victim, 20 * round_number)
            victim.kill()
            workers.append(WorkerProcess(redis_url, tmp_path, QUICK, **stand_in))
        ended = {line[1] for line in until(lambda: all_ended(workers[0], set(unwatched)), 120, "all jobs end")}
        assert ended >= set(unwatched)
        for request in watched:
            frames = submitter.frames[request, 1]
            until(lambda: frames, what=f"somebody is told of {request}")  # noqa: B023
            assert isinstance(frames[0].body, Accepted)
        until(lambda: submitter.waiting() == 0)
    finally:
        for process in workers:
            process.kill()


def await_starts(process: WorkerProcess, number: int) -> None:
    until(lambda: len(process.noted("start")) > number, 60)


def all_ended(process: WorkerProcess, requests: set[str]) -> list[list[str]]:
    lines = process.noted("end")
    return lines if requests <= {line[1] for line in lines} else []


def test_a_dead_workers_unaccepted_jobs_go_to_another(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    past_restart_grace(submitter)
    with worker(redis_url, tmp_path, QUICK, slots=4, step_seconds=0.02) as first:
        first.ready(submitter)
        submitter.submit("unwatched", 2000, replies=False)
        until(lambda: first.noted("start"))
        first.kill()
    with worker(redis_url, tmp_path, QUICK, slots=4, step_seconds=0.0) as second:
        second.ready(submitter)
        until(lambda: [line for line in second.noted("end") if line[1] == "unwatched"], 60)


def test_the_engine_never_outlives_its_worker(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, tmp_path) as process:
        record = process.ready(submitter)
        submitter.submit("hung", faults=["hang_at:0"])
        until(lambda: process.noted("start"))
        process.kill()
        until(lambda: not Path(f"/proc/{record.engine_pid}").exists())


@pytest.mark.parametrize("kind", ["normal", "pubsub"])
def test_cut_connections_run_nothing_twice(submitter: Submitter, redis_url: str, tmp_path: Path, kind: str) -> None:
    with worker(redis_url, tmp_path, slots=4, step_seconds=0.02) as process:
        process.ready(submitter)
        requests = [f"job-{number}" for number in range(12)]
        for number, request in enumerate(requests):
            submitter.submit(request, 40, replies=number % 3 != 0)
        until(lambda: len(process.noted("start")) >= 4)
        for _ in range(4):
            names = submitter.client.client_list()
            for client in names:
                mine = client["name"].startswith("tgq")
                if mine and ("P" in client["flags"] or client["sub"] != "0" or client["psub"] != "0") == (
                    kind == "pubsub"
                ):
                    submitter.client.client_kill_filter(_id=client["id"])
            time.sleep(0.3)  # The load goes on between the cuts.
        until(lambda: len(process.noted("end")) == 12, 60)
        assert Counter(line[1] for line in process.noted("start")) == Counter(requests)
        for number, request in enumerate(requests):
            if number % 3 != 0:
                submitter.wait(request)
                assert submitter.text(request) == "".join(f"{index} " for index in range(40))
        submitter.submit("after")
        submitter.wait("after")
        assert process.process.poll() is None


def test_survives_a_redis_crash_and_serves_on(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "redis", append_only=True) as server:
        submitter = Submitter(server.url)
        with worker(server.url, tmp_path, slots=4, step_seconds=0.05) as process:
            process.ready(submitter)
            requests = [f"job-{number}" for number in range(8)]
            for number, request in enumerate(requests):
                submitter.submit(request, 60, replies=number % 2 == 0)
            until(lambda: len(process.noted("start")) >= 4)
            server.kill()
            time.sleep(1.5)  # Redis is away while jobs run.
            server.start()
            until(lambda: len(process.noted("end")) == 8, 90)
            assert Counter(line[1] for line in process.noted("start")) == Counter(requests)
            for request in requests[::2]:
                submitter.wait(request)
                frames = {frame.sequence: frame for frame in submitter.frames[request, 1]}
                # What was published while nobody was subscribed is asked for again; what waited is here.
                last = frames[max(frames)].body
                assert isinstance(last, Tokens)
                assert last.offset + len(last.tokens) == 60
            submitter.submit("after")
            submitter.wait("after")
            process.terminate()
            assert process.wait() == 0
        submitter.close()


def test_a_pull_that_always_fails_fills_no_log_and_shows(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    """Redis is there and refuses the script: somebody else's value has the name of a part of the queue."""
    with worker(redis_url, tmp_path, slots=4) as process:
        process.ready(submitter)
        turns = f"{submitter.queue()}:turns"
        submitter.client.set(turns, "not ours")
        until(lambda: (record := process.record(submitter)) is not None and record.state == "restarting", 60)
        assert len(process.output.read_text().splitlines()) < 100
        submitter.client.delete(turns)
        process.ready(submitter)
        submitter.submit("after")
        submitter.wait("after")


def test_a_frozen_redis_stops_nothing_for_good(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "redis") as server:
        submitter = Submitter(server.url)
        with worker(server.url, tmp_path, step_seconds=0.02) as process:
            process.ready(submitter)
            submitter.submit("running", 400)
            until(lambda: submitter.frames["running", 1])
            server.freeze()
            time.sleep(5)  # Longer than every timeout of the worker.
            server.thaw()
            submitter.wait("running", timeout=60)
            submitter.submit("after")
            submitter.wait("after", timeout=60)
            assert [line[1] for line in process.noted("start")] == ["running", "after"]
        submitter.close()


class TestEngineLoss:
    def test_accepted_jobs_fail_retryably_and_the_engine_comes_back(
        self, submitter: Submitter, redis_url: str, tmp_path: Path
    ) -> None:
        with worker(redis_url, tmp_path, step_seconds=0.02) as process:
            record = process.ready(submitter)
            submitter.submit("innocent", 500)
            until(lambda: submitter.frames["innocent", 1])
            submitter.submit("poison", 10, faults=["kill_at:3"])
            for name in ("innocent", "poison"):
                body = submitter.wait(name).body
                assert isinstance(body, Failed)
                assert (body.error_type, body.retryable) == ("generation", True)
            submitter.submit("after")
            submitter.wait("after", timeout=60)
            until(lambda: process.ready(submitter).engine_pid != record.engine_pid)
            # Totals go on counting over the restart.
            until(lambda: process.ready(submitter).stats.generated_tokens >= 3 + 3)

    def test_a_stalled_engine_is_killed_and_replaced(
        self, submitter: Submitter, redis_url: str, tmp_path: Path
    ) -> None:
        with worker(redis_url, tmp_path, {"engine_stall_timeout": 1.0}) as process:
            process.ready(submitter)
            submitter.submit("hung", faults=["hang_at:2"])
            body = submitter.wait("hung").body
            assert isinstance(body, Failed)
            assert body.retryable
            assert "finished no step for 1 s" in body.message
            submitter.submit("after")
            submitter.wait("after", timeout=60)

    def test_a_frozen_engine_is_killed_and_replaced(self, submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
        with worker(redis_url, tmp_path, {"engine_frozen_timeout": 2.0}, step_seconds=0.02) as process:
            record = process.ready(submitter)
            submitter.submit("running", 500)
            until(lambda: len(submitter.frames["running", 1]) > 1)
            process.freeze_engine(record)
            submitter.submit("not accepted")
            for name in ("running", "not accepted"):
                body = submitter.wait(name).body
                assert isinstance(body, Failed)
                assert (body.retryable, body.handed_over) == (True, False)
                assert "showed no sign of life for 2 s" in body.message
            submitter.submit("after")
            submitter.wait("after", timeout=60)
            # Nobody has to ask anything of it for it to be noticed.
            until(lambda: process.ready(submitter).engine_pid != record.engine_pid)
            process.freeze_engine(again := process.ready(submitter))
            until(lambda: not Path(f"/proc/{again.engine_pid}").exists())
            assert process.ready(submitter).pid == record.pid

    def test_a_frozen_worker_does_not_blame_its_engine(
        self, submitter: Submitter, redis_url: str, tmp_path: Path
    ) -> None:
        with worker(redis_url, tmp_path, {"engine_frozen_timeout": 2.0}, step_seconds=0.02) as process:
            record = process.ready(submitter)
            submitter.submit("running", 150)
            until(lambda: len(submitter.frames["running", 1]) > 1)
            process.freeze_engine(record)
            process.freeze()
            time.sleep(3)  # Longer than an engine may be silent.
            assert record.engine_pid is not None
            os.kill(record.engine_pid, signal.SIGCONT)
            process.thaw()
            assert isinstance(submitter.wait("running").body, Tokens)

    def test_one_that_cannot_load_again_ends_the_worker(
        self, submitter: Submitter, redis_url: str, tmp_path: Path
    ) -> None:
        broken = tmp_path / "broken"
        with worker(redis_url, tmp_path, step_seconds=0.02, tokens=20_000, broken_if=broken) as process:
            record = process.ready(submitter)
            submitter.submit("unwatched", 5000, replies=False)
            submitter.submit("watched", 5000)
            until(lambda: submitter.frames["watched", 1])
            broken.touch()
            assert record.engine_pid is not None
            os.kill(record.engine_pid, signal.SIGKILL)
            body = submitter.wait("watched").body
            assert isinstance(body, Failed)
            assert body.retryable
            until(lambda: (now := process.record(submitter)) is None or now.state == "restarting")
            submitter.submit("queued")
            assert process.wait() == 1
            assert "CUDA error: unspecified launch failure" in process.output.read_text()
            assert submitter.waiting() == 2
            assert submitter.workers() == []

    def test_a_poison_job_nobody_watches_ends_after_its_attempts_and_takes_no_other_along(
        self, submitter: Submitter, redis_url: str, tmp_path: Path
    ) -> None:
        with worker(redis_url, tmp_path, {"max_attempts": 2}, step_seconds=0.02) as process:
            process.ready(submitter)
            submitter.submit("innocent", 60, replies=False)
            submitter.submit("poison", 10, replies=False, faults=["kill_at:0"])
            until(lambda: [line for line in process.noted("end") if line[1] == "innocent"], 60)
            until(lambda: "2 engines were lost" in process.output.read_text())
            assert len([line for line in process.noted("start") if line[1] == "poison"]) == 2
            record = process.ready(submitter)
            until(lambda: not submitter.client.exists(submitter.keys.unacked(record.id)))
            submitter.submit("after")
            submitter.wait("after", timeout=60)

    def test_an_idle_engine_may_be_killed(self, submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
        with worker(redis_url, tmp_path) as process:
            record = process.ready(submitter)
            assert record.engine_pid is not None
            os.kill(record.engine_pid, signal.SIGKILL)
            submitter.submit("after")
            submitter.wait("after", timeout=60)
