"""Cases from other systems' bug reports, replayed: what Celery, kombu and Redis do to a worker (H)."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from kombu.connection import Connection

from common.celery_app import make_app
from common.celery_message import TASK_NAME, celery_message
from common.settings import Settings
from common.wire import Cancel
from ops.embedded_redis import EmbeddedRedis
from ops.process_figures import resident_mib
from tests.integration.workers.support import MODEL, Submitter, WorkerProcess, until, worker

RESTARTS = 3
FAILING = 400


def starts(process: WorkerProcess) -> Counter[str]:
    return Counter(line[1] for line in process.noted("start"))


def test_h01_h02_h24_nobodys_visibility_timeout_runs_a_job_twice(
    submitter: Submitter, redis_url: str, tmp_path: Path
) -> None:
    """Another application on the same database gives back, all the time, what is older than a moment."""
    impatient: Any = Connection(  # type: ignore[no-untyped-call]
        redis_url, transport_options={"visibility_timeout": 0.01, "unacked_restore_interval": 1}
    )
    jobs = ["long", *(f"behind-{number}" for number in range(10))]
    with worker(redis_url, tmp_path, slots=1, step_seconds=0.02) as process, impatient:
        record = process.ready(submitter)
        submitter.submit("long", 150, replies=False)
        until(lambda: process.noted("start"))
        for request in jobs[1:]:
            submitter.submit(request, 1, replies=False)
        swept = 0
        while not process.noted("end"):
            impatient.default_channel.qos.restore_visible(num=100)
            swept += 1
            # None is prefetched that could be given back.
            assert submitter.client.hlen(submitter.keys.unacked(record.id)) <= 2
            time.sleep(0.01)
        assert swept > 10
        until(lambda: len(process.noted("end")) == len(jobs))
        assert starts(process) == Counter(jobs)


def test_h06_h08_h09_three_restarts_in_a_row_stop_no_worker_and_bring_no_prefetching(tmp_path: Path) -> None:
    """One runs, others wait; a worker with a free slot gets them, not the one that is busy."""
    with EmbeddedRedis(tmp_path / "redis", append_only=True) as server:
        submitter = Submitter(server.url)
        (tmp_path / "busy").mkdir()
        (tmp_path / "idle").mkdir()
        with worker(server.url, tmp_path / "busy", slots=1, step_seconds=0.05) as busy:
            busy.ready(submitter)
            submitter.submit("long", 7000)
            until(lambda: busy.noted("start"))
            for number in range(4):
                submitter.submit(f"short-{number}", 1)
            for _ in range(RESTARTS):
                server.kill()
                server.start()
                until(submitter.client.ping)
            busy.ready(submitter)
            until(lambda: submitter.waiting() == 4, what="all short jobs in the queue")
            with worker(server.url, tmp_path / "idle", slots=1, step_seconds=0.01) as idle:
                idle.ready(submitter)
                for number in range(4):
                    submitter.wait(f"short-{number}")
                assert len(starts(idle)) == 4
                assert not submitter.ended("long")
                # The one that lived through it still takes work.
                idle.terminate()
                assert idle.wait() == 0
            submitter.control(Cancel("long"))
            submitter.wait("long")
            submitter.submit("after", 1)
            submitter.wait("after")
            assert starts(busy) == Counter(["long", "after"])
        submitter.close()


def test_h13_inspecting_and_restarting_leave_no_more_and_more_keys(
    submitter: Submitter, redis_url: str, tmp_path: Path
) -> None:
    app = make_app(Settings.of(redis_url=redis_url, model_id=MODEL))

    def lasting() -> set[bytes]:
        client = submitter.client
        return {
            name
            for name in client.scan_iter("*")
            if client.ttl(name) == -1 and submitter.keys.prefix.encode() not in name
        }

    counts = []
    for _ in range(2):
        with worker(redis_url, tmp_path) as process:
            process.ready(submitter)
            app.control.revoke([f"gone-{number}" for number in range(1000)])
            until(lambda: app.control.ping(timeout=0.3), what="an answer")
            for _ in range(2):
                app.control.inspect(timeout=0.2).active()
            process.process.send_signal(signal.SIGKILL)
            process.wait()
        counts.append(len(lasting()))
    app.close()
    # Celery's bindings: a set for each of its exchanges, however many have been bound to it.
    assert counts[-1] == counts[0] <= 6
    members = sum(submitter.client.scard(name) for name in lasting() if submitter.client.type(name) == b"set")
    assert members <= 20


def test_h23_a_task_for_later_runs_once(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    """Nothing here makes one; other producers may."""
    app = make_app(Settings.of(redis_url=redis_url, model_id=MODEL))
    with worker(redis_url, tmp_path) as process:
        process.ready(submitter)
        job = submitter.job("later", replies=False)
        app.send_task(
            TASK_NAME,
            [msgspec.to_builtins(job)],
            task_id="later",
            argsrepr="",
            headers={"cost": job.cost},
            countdown=1,
        )
        submitter.submit("now", 1)
        submitter.wait("now")
        until(lambda: process.noted("end") and starts(process)["later"], what="its time")
        process.terminate()
        assert process.wait() == 0
        assert starts(process) == Counter(["now", "later"])
    app.close()


def test_h34_failing_tasks_keep_no_memory(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    queue = submitter.queue()

    def fail(first: int) -> None:
        for number in range(first, first + FAILING):
            bad = submitter.job(f"bad-{number}", replies=False, prompt_ids=[])
            submitter.client.lpush(queue, celery_message(bad, queue))
        submitter.submit(f"good-{first}", 1)
        submitter.wait(f"good-{first}", timeout=60)
        record = process.ready(submitter)
        until(lambda: not submitter.client.exists(submitter.keys.unacked(record.id)), 60, what="the end of them all")

    with worker(redis_url, tmp_path) as process:
        fail(0)
        warm = resident_mib(process.pid)
        fail(FAILING)
        fail(2 * FAILING)
        # Each holds a third of one until it is collected: about 270 if they were kept, 10 to 45 as Python collects.
        assert resident_mib(process.pid) - warm < 100.0
        assert len(process.output.read_text().splitlines()) < 200
