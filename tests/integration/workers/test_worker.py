"""A worker's everyday life: real Valkey, real worker process, stand-in engine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from common.celery_app import make_app
from common.celery_message import TASK_NAME, celery_message
from common.settings import Settings
from common.wire import Accepted, Cancel, Cancelled, Failed, Release, Resend, encode_json
from ops.embedded_redis import EmbeddedRedis
from tests.integration.workers.support import MODEL, Submitter, WorkerProcess, until, worker


def settled(submitter: Submitter, worker_id: str) -> bool:
    """Whether the worker holds nothing in Redis."""
    keys = submitter.keys
    return not submitter.client.exists(keys.unacked(worker_id), keys.unacked_index(worker_id))


def lasting(submitter: Submitter) -> set[bytes]:
    """Keys that no expiry removes, but for Celery's own."""
    client = submitter.client
    return {name for name in client.scan_iter("*") if client.ttl(name) == -1 and b"_kombu" not in name}


def test_streams_in_order_acknowledges_and_leaves_nothing(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, tmp_path) as process:
        record = process.ready(submitter)
        submitter.submit("one", 5)
        submitter.wait("one")
        frames = submitter.frames["one", 1]
        # Tokens that come fast may share a frame.
        assert [frame.sequence for frame in frames] == list(range(len(frames)))
        assert frames[0].body == Accepted(record.id)
        assert submitter.text("one") == "0 1 2 3 4 "
        # What is beside the queue goes when the worker next finds it empty.
        until(lambda: lasting(submitter) == {submitter.keys.workers.encode()}, what="the registry alone")
        process.terminate()
        assert process.wait() == 0
        assert not lasting(submitter)


def test_one_message_per_step_for_all_jobs_of_a_submitter(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    for number in range(8):  # before there is a worker: it takes them together
        submitter.submit(f"job-{number}", 20)
    with worker(redis_url, tmp_path, step_seconds=0.05):
        for number in range(8):
            submitter.wait(f"job-{number}", timeout=60)
        # 8 x 21 frames; jobs that start a step apart end a step apart.
        assert submitter.messages <= 50


def test_never_holds_more_tokens_or_jobs_than_the_engine_has_room_for(
    submitter: Submitter, redis_url: str, tmp_path: Path
) -> None:
    costs = [50 + 67 * number % 400 for number in range(60)]
    for number, cost in enumerate(costs):
        submitter.submit(f"job-{number}", 2 + number % 5, prompt_ids=[7] * (cost - 2 - number % 5))
    with worker(redis_url, tmp_path, slots=8, tokens=1000, step_seconds=0.01) as process:
        for number in range(60):
            submitter.wait(f"job-{number}", timeout=60)
        held = [(int(jobs), int(tokens)) for _, jobs, tokens in process.noted("held")]
        assert max(jobs for jobs, _ in held) <= 8
        assert 700 < max(tokens for _, tokens in held) <= 1000


def test_a_job_that_can_never_fit_is_refused_and_does_not_block(
    submitter: Submitter, redis_url: str, tmp_path: Path
) -> None:
    with worker(redis_url, tmp_path, tokens=100) as process:
        record = process.ready(submitter)
        submitter.submit("huge", 90, prompt_ids=[1] * 20)
        submitter.submit("small")
        submitter.wait("small")
        body = submitter.wait("huge").body
        assert isinstance(body, Failed)
        assert body.error_type == "validation"
        assert "must be <= 100. Given: 20 `inputs` tokens and 90" in body.message
        until(lambda: settled(submitter, record.id))


def test_interactive_goes_first_and_batch_leaves_the_reserve_free(
    submitter: Submitter, redis_url: str, tmp_path: Path
) -> None:
    for number in range(6):
        submitter.submit(f"batch-{number}", 1000, job_class="batch")
    with worker(redis_url, tmp_path, {"batch_reserve": 1}, slots=4, step_seconds=0.02) as process:
        process.ready(submitter)
        until(lambda: len(process.noted("start")) == 3)
        submitter.submit("live", 2)
        submitter.wait("live")
        # It did not wait for one of the batch jobs, which take 20 s, to end.
        assert process.noted("end")[0][1] == "live"
        assert submitter.waiting("batch") == 3


def test_cancels_a_running_job_and_frees_its_slot(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, tmp_path, slots=1, step_seconds=0.02) as process:
        record = process.ready(submitter)
        submitter.submit("long", 5000)
        submitter.submit("next", 2)
        until(lambda: len(submitter.frames["long", 1]) > 3)
        submitter.control(Cancel("long"))
        assert submitter.wait("long").body == Cancelled()
        submitter.wait("next")
        until(lambda: settled(submitter, record.id))


def test_a_job_cancelled_in_the_queue_never_starts(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    submitter.submit("unwanted")
    submitter.control(Cancel("unwanted"))
    submitter.submit("wanted")
    with worker(redis_url, tmp_path) as process:
        process.ready(submitter)
        submitter.wait("wanted")
        assert submitter.wait("unwanted").body == Cancelled()
        assert [line[1] for line in process.noted("start")] == ["wanted"]


def test_sends_missed_frames_again_until_released(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, tmp_path) as process:
        record = process.ready(submitter)
        submitter.submit("one", 4)
        submitter.wait("one")
        original = list(submitter.frames["one", 1])
        # How many there are is chance: tokens that come fast may share one.
        submitter.control(Resend("one", 1, 1), record.id)
        again = [*original, *original[1:]]
        until(lambda: len(submitter.frames["one", 1]) >= len(again))
        assert submitter.frames["one", 1] == again
        submitter.control(Release(["one"]), record.id)
        submitter.control(Resend("one", 1, 0), record.id)
        submitter.submit("two")
        submitter.wait("two")
        assert submitter.frames["one", 1] == again


def test_drops_duplicates_and_older_attempts(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, tmp_path, step_seconds=0.02) as process:
        record = process.ready(submitter)
        submitter.submit("twice", 20, attempt=2)
        until(lambda: submitter.frames["twice", 2])
        submitter.submit("twice", 20, attempt=2)
        submitter.submit("twice", 20, attempt=1)
        submitter.wait("twice", 2)
        submitter.submit("twice", 20, attempt=2)
        submitter.submit("after")
        submitter.wait("after")
        assert [line[1:3] for line in process.noted("start")] == [["twice", "2"], ["after", "1"]]
        assert not submitter.frames["twice", 1]
        frames = submitter.frames["twice", 2]
        assert [frame.sequence for frame in frames] == list(range(len(frames)))
        assert submitter.text("twice", 2) == "".join(f"{index} " for index in range(20))
        until(lambda: settled(submitter, record.id))


def test_a_newer_attempt_takes_over(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, tmp_path, step_seconds=0.02) as process:
        process.ready(submitter)
        submitter.submit("again", 500)
        until(lambda: len(submitter.frames["again", 1]) > 2)
        submitter.submit("again", 4, attempt=2)
        submitter.wait("again", 2)
        assert submitter.text("again", 2) == "0 1 2 3 "
        assert submitter.ended("again", 1) is None
        assert process.record(submitter)


def broken_messages(submitter: Submitter) -> dict[str, bytes]:
    """By the error type their submitter hears of ('' for those that name no submitter)."""
    queue = submitter.queue()
    bad = submitter.job("bad")
    good = celery_message(bad, queue)
    job = encode_json(bad).decode().replace('"', '\\"').encode()
    assert job in good
    return {
        "not JSON at all": b"\x00garbage",
        "no headers": b'{"body":"x"}',
        "JSON cut off": good[:-40],
        "body is no JSON": good.replace(b'"body":"[[', b'"body":"[['[:-1] + b"!"),
        "body is no triple": good.replace(job, b"1").replace(b'],{},{\\"callbacks', b'],{},{},{},{\\"callbacks'),
        "unknown task": good.replace(b"tgq.generate", b"tgq.nonsense"),
        "no task": good.replace(b'"task":', b'"tusk":'),
        "no id": good.replace(b'"id":"bad"', b'"ix":"bad"'),
        "not a job": good.replace(job, b"{}"),
        "wrong type": good.replace(b'\\"prompt_ids\\":[1,2]', b'\\"prompt_ids\\":\\"SECRET\\"'),
        "wrong version": good.replace(job, b'{\\"version\\":99}'),
        "bad expiry": good.replace(b'"expires":null', b'"expires":"tomorrow"'),
        "bad parameters": good.replace(b'\\"max_new_tokens\\":3', b'\\"max_new_tokens\\":0'),
    }


def test_bad_messages_disturb_nobody(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, tmp_path, step_seconds=0.02) as process:
        record = process.ready(submitter)
        submitter.submit("running", 50)
        until(lambda: submitter.frames["running", 1])
        names = list(broken_messages(submitter))
        for name in names:
            submitter.client.lpush(submitter.queue(), broken_messages(submitter)[name])
        submitter.submit("good")
        submitter.wait("good")
        submitter.wait("running")
        assert submitter.text("running") == "".join(f"{index} " for index in range(50))
        until(lambda: settled(submitter, record.id))
        # Those whose headers are whole were answered; the others name no submitter.
        errors = [frame.body for frame in submitter.frames["bad", 1]]
        assert {type(error) for error in errors} == {Failed}
        assert {error.error_type for error in errors if isinstance(error, Failed)} == {"validation", "unavailable"}
        assert len(errors) == 9, errors
        assert process.process.poll() is None
        assert process.record(submitter)
        process.terminate()
        assert process.wait() == 0
        assert "SECRET" not in process.output.read_text()


def test_a_late_job_is_refused_with_a_timeout(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    submitter.submit("late", deadline=time.time() - 1)
    submitter.submit("in-time", deadline=time.time() + 60)
    with worker(redis_url, tmp_path) as process:
        process.ready(submitter)
        submitter.wait("in-time")
        body = submitter.wait("late").body
        assert isinstance(body, Failed)
        assert body.error_type == "timeout"
        assert [line[1] for line in process.noted("start")] == ["in-time"]


def test_jobs_of_a_submitter_that_is_gone_are_cancelled(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    gone = Submitter(redis_url, "gone")
    with worker(redis_url, tmp_path, step_seconds=0.02) as process:
        process.ready(submitter)
        gone.submit("orphan", 5000)
        submitter.submit("wanted", 300)
        until(lambda: gone.frames["orphan", 1])
        gone.close()
        until(lambda: process.noted("cancelled"))
        submitter.wait("wanted")
        assert process.noted("cancelled") == [["cancelled", "orphan"]]


class TestPlainCeleryProducer:
    """`app.send_task` with Celery's own transport and no reply channel."""

    def send(self, submitter: Submitter, url: str, request: str, tokens: int = 3, **options: Any) -> None:
        app = make_app(Settings.of(redis_url=url, model_id=MODEL))
        job = submitter.job(request, tokens, replies=False)
        options.setdefault("headers", {"cost": job.cost})
        app.send_task(TASK_NAME, [msgspec.to_builtins(job)], task_id=request, argsrepr="", **options)
        app.close()

    def test_runs_and_is_acknowledged_at_its_end(self, submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
        with worker(redis_url, tmp_path, step_seconds=0.02) as process:
            record = process.ready(submitter)
            self.send(submitter, redis_url, "plain", 150)
            until(lambda: process.noted("start"))
            assert submitter.client.hlen(submitter.keys.unacked(record.id)) == 1
            until(lambda: process.noted("end"))
            until(lambda: settled(submitter, record.id))

    def test_revoke_frees_the_slot(self, submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
        with worker(redis_url, tmp_path, slots=1, step_seconds=0.02) as process:
            record = process.ready(submitter)
            self.send(submitter, redis_url, "unwanted", 5000)
            until(lambda: process.noted("start"))
            app = make_app(Settings.of(redis_url=redis_url, model_id=MODEL))
            app.control.revoke("unwanted", terminate=True)
            app.close()
            until(lambda: process.noted("cancelled"))
            until(lambda: settled(submitter, record.id))
            submitter.submit("next")
            submitter.wait("next")

    def test_a_time_limit_ends_it(self, submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
        with worker(redis_url, tmp_path, step_seconds=0.02) as process:
            record = process.ready(submitter)
            self.send(submitter, redis_url, "slow", 5000, time_limit=1)
            until(lambda: process.noted("cancelled"))
            until(lambda: settled(submitter, record.id))
            assert "Hard time limit (1s) exceeded" in process.output.read_text()


@pytest.mark.parametrize("signals", [1, 2])
def test_a_worker_that_is_still_loading_stops_at_once(
    submitter: Submitter, redis_url: str, tmp_path: Path, signals: int
) -> None:
    with worker(redis_url, tmp_path, load_seconds=200) as process:
        record = until(lambda: process.record(submitter))
        assert record.state == "starting"
        for _ in range(signals):
            process.terminate()
        assert process.wait() == 0
        assert submitter.workers() == []


def test_an_engine_that_cannot_load_ends_the_worker(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, tmp_path, load_error="no such model") as process:
        assert process.wait() == 1
        assert "RuntimeError: no such model" in process.output.read_text()
        assert submitter.workers() == []


def test_takes_passwords_with_special_characters(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "redis") as server:
        with redis.Redis.from_url(server.url) as client:
            client.config_set("requirepass", "p@ss/w:rd%")
        url = server.url.replace("redis://", "redis://:p%40ss%2Fw%3Ard%25@")
        submitter = Submitter(url)
        with worker(url, tmp_path) as process:
            process.ready(submitter)
            submitter.submit("one")
            submitter.wait("one")
            process.terminate()
            assert process.wait() == 0
            assert "p@ss" not in process.output.read_text()
        submitter.close()


def test_refuses_to_start_without_redis(tmp_path: Path) -> None:
    process = WorkerProcess("redis://127.0.0.1:1/0", tmp_path)
    assert process.wait() == 1
    assert "Redis cannot be reached" in process.output.read_text()


def test_shows_its_state_and_figures(submitter: Submitter, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, tmp_path, step_seconds=0.02) as process:
        record = process.ready(submitter)
        assert record.card is not None
        assert (record.model, record.card.max_batch_size, record.running) == (MODEL, 8, 0)
        assert record.engine_pid not in (None, process.pid)
        submitter.submit("one", 5000)

        def running() -> bool:
            record = process.record(submitter)
            return record is not None and record.running == 1 and record.stats.generated_tokens > 0

        until(running)
        submitter.control(Cancel("one"))
        assert submitter.wait("one").body == Cancelled()
