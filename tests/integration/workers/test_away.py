"""A worker that is cut off or stands still for a while: others take over, it notices, and nothing is lost or done twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from common.reaper import RESTART_GRACE_SECONDS
from common.wire import Accepted, Cancel, Cancelled, Failed, Tokens, WorkerRecord
from ops.chaos.tcp_proxy import TcpProxy
from ops.embedded_redis import EmbeddedRedis
from tests.integration.workers.support import Submitter, WorkerProcess, until, worker

QUICK: dict[str, Any] = {"heartbeat_seconds": 0.1, "worker_dead_after": 1.0, "redis_timeout": 0.5}
SLOW: dict[str, Any] = {"step_seconds": 0.02, "tokens": 20_000}


class Pair:
    """Two workers: the first one behind a wire of its own, the second one started when it is asked for."""

    def __init__(self, url: str, proxy: TcpProxy, directory: Path) -> None:
        for name in ("first", "second"):
            (directory / name).mkdir()
        self.proxy = proxy
        self.first = WorkerProcess(proxy.url, directory / "first", QUICK, **SLOW)
        self._url, self._directory = url, directory

    @cached_property
    def second(self) -> WorkerProcess:
        return WorkerProcess(self._url, self._directory / "second", QUICK, **SLOW)

    def close(self) -> None:
        self.first.kill()
        if "second" in self.__dict__:
            self.second.kill()


@pytest.fixture
def pair(submitter: Submitter, redis_url: str, tmp_path: Path) -> Iterator[Pair]:
    until(lambda: int(submitter.client.info("server")["uptime_in_seconds"]) >= RESTART_GRACE_SECONDS, 30)
    with TcpProxy(int(redis_url.rpartition(":")[2].partition("/")[0])) as proxy:
        pair = Pair(redis_url, proxy, tmp_path)
        try:
            yield pair
        finally:
            pair.close()


def gone(submitter: Submitter, record: WorkerRecord) -> bool:
    return record.id not in [other.id for other in submitter.workers(QUICK["worker_dead_after"])]


def starts(process: WorkerProcess, request: str) -> list[str]:
    """Attempts of a request that this worker's engine has begun."""
    return [line[2] for line in process.noted("start") if line[1] == request]


class TestCutOff:
    def test_its_requests_go_on_elsewhere_and_it_lets_them_go(self, submitter: Submitter, pair: Pair) -> None:
        record = pair.first.ready(submitter)
        submitter.submit("stream", 5000)
        submitter.submit("unwatched", 5000, replies=False)
        until(lambda: len(submitter.frames["stream", 1]) > 3 and starts(pair.first, "unwatched"))
        pair.second.ready(submitter)
        pair.proxy.hole = True
        until(lambda: gone(submitter, record))
        # As its submitter does.
        submitter.client.set(submitter.keys.attempt("stream"), "2", ex=60)
        submitter.submit("stream", 3000, attempt=2)
        until(lambda: starts(pair.second, "stream") == ["2"] and starts(pair.second, "unwatched") == ["1"])
        pair.proxy.hole = False
        until(lambda: not gone(submitter, record))
        until(lambda: {line[1] for line in pair.first.noted("cancelled")} == {"stream", "unwatched"})
        heard = {frame.body.worker for frame in submitter.frames["stream", 2] if isinstance(frame.body, Accepted)}
        assert heard == {pair.second.ready(submitter).id}
        pair.second.kill()
        submitter.submit("after")
        submitter.wait("after")
        assert starts(pair.first, "after") == ["1"]

    def test_what_it_had_not_begun_is_begun_once(self, submitter: Submitter, pair: Pair) -> None:
        record = pair.first.ready(submitter)
        submitter.submit("hung", 5, faults=["hang_at:2"])
        until(lambda: pair.first.noted("hang"))
        requests = {"watched": True, "unwatched": False}
        for request, replies in requests.items():
            submitter.submit(request, 30, replies=replies)
        until(lambda: (now := pair.first.record(submitter)) is not None and now.waiting == 2)
        pair.proxy.hole = True
        pair.second.ready(submitter)
        until(lambda: all(starts(pair.second, request) == ["1"] for request in requests))
        pair.proxy.hole = False
        until(lambda: not gone(submitter, record))
        until(lambda: (now := pair.first.record(submitter)) is not None and now.waiting == 0)
        submitter.wait("watched")
        until(lambda: ["end", "unwatched", "1"] in pair.second.noted("end"))
        assert "job_reaped" in pair.first.output.read_text()
        assert not starts(pair.first, "watched")

    def test_it_goes_on_when_nobody_took_over(self, submitter: Submitter, pair: Pair) -> None:
        """An interruption shorter than others wait changes nothing."""
        pair.first.ready(submitter)
        submitter.submit("stream", 200)
        until(lambda: len(submitter.frames["stream", 1]) > 3)
        pair.proxy.hole = True
        until(lambda: pair.proxy.swallowed > 0)
        pair.proxy.hole = False
        until(lambda: submitter.frames["stream", 1][-1].sequence > 150 or submitter.ended("stream"))
        submitter.wait("stream")
        assert starts(pair.first, "stream") == ["1"]


class TestFrozen:
    def test_it_takes_up_its_work_where_others_did_not(self, submitter: Submitter, pair: Pair) -> None:
        record = pair.first.ready(submitter)
        requests = [f"job-{number}" for number in range(12)]
        for number, request in enumerate(requests):
            # The first eight run for 4 s, in which their worker is stopped.
            submitter.submit(request, 200 if number < 8 else 60, replies=number % 2 == 0)
        until(lambda: len(pair.first.noted("start")) == 8)
        pair.first.freeze()
        until(lambda: gone(submitter, record))
        pair.second.ready(submitter)
        # Four were waiting in the queue, and those nobody watched were returned to it.
        until(lambda: len(pair.second.noted("end")) >= 8)
        pair.first.thaw()
        until(lambda: not gone(submitter, record))
        for request in requests[::2]:
            submitter.wait(request)
        unwatched = requests[1::2]
        until(
            lambda: (
                set(unwatched) <= {line[1] for process in (pair.first, pair.second) for line in process.noted("end")}
            )
        )
        keys = submitter.keys
        for process in (pair.first, pair.second):
            until(lambda: not submitter.client.exists(keys.unacked(process.ready(submitter).id)))  # noqa: B023
        assert submitter.waiting() == 0


def test_stale_and_cancelled_messages_do_no_work(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    submitter.client.set(submitter.keys.attempt("stale"), "3", ex=60)
    submitter.submit("stale", attempt=2)
    submitter.submit("unwanted")
    submitter.client.set(submitter.keys.cancelled("unwanted"), "1", ex=60)
    submitter.client.set(submitter.keys.attempt("newest"), "3", ex=60)
    submitter.submit("newest", attempt=3)
    with worker(redis_url, tmp_path, **SLOW) as process:
        record = process.ready(submitter)
        assert isinstance(submitter.wait("newest", 3).body, Tokens)
        assert submitter.wait("unwanted").body == Cancelled()
        assert [line[1] for line in process.noted("start")] == ["newest"]
        until(lambda: not submitter.client.exists(submitter.keys.unacked(record.id)))


def test_a_cancel_of_older_attempts_spares_newer_ones(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, tmp_path, **SLOW) as process:
        record = process.ready(submitter)
        for request, attempt in (("old", 1), ("new", 2)):
            submitter.submit(request, 5000 if request == "old" else 100, attempt=attempt)
            until(lambda: submitter.frames[request, attempt])  # noqa: B023
            submitter.tell(Cancel(request, below=2), record.id)
        assert submitter.wait("old").body == Cancelled()
        assert isinstance(submitter.wait("new", 2).body, Tokens)
        assert process.noted("cancelled") == [["cancelled", "old"]]


def test_a_full_redis_is_survived_and_emptied(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "redis") as server:
        submitter = Submitter(server.url)
        with worker(server.url, tmp_path, QUICK, slots=2, **SLOW) as process:
            record = process.ready(submitter)
            requests = [f"job-{number}" for number in range(6)]
            for request in requests:
                submitter.submit(request, 40)
            until(lambda: len(process.noted("start")) >= 2)
            submitter.client.config_set("maxmemory", "1")
            for request in requests:
                submitter.wait(request)
            until(lambda: not gone(submitter, record))
            submitter.client.config_set("maxmemory", "0")
            submitter.submit("after")
            submitter.wait("after")
            assert Counter(line[1] for line in process.noted("start")) == Counter([*requests, "after"])
            process.terminate()
            assert process.wait() == 0
        submitter.close()


def test_a_paused_redis_loses_nothing(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "redis") as server:
        submitter = Submitter(server.url)
        with worker(server.url, tmp_path, QUICK, slots=4, **SLOW) as process:
            process.ready(submitter)
            requests = [f"job-{number}" for number in range(8)]
            for request in requests:
                submitter.submit(request, 40)
            until(lambda: len(process.noted("start")) >= 4)
            paused_at = time.monotonic()
            submitter.client.client_pause(4000)
            until(lambda: len(process.noted("end")) >= 4)
            assert time.monotonic() - paused_at < 4, "the engine waited for Redis"
            for request in requests:
                submitter.wait(request)
                assert not isinstance(submitter.frames[request, 1][-1].body, Failed)
            assert Counter(line[1] for line in process.noted("start")) == Counter(requests)
        submitter.close()
