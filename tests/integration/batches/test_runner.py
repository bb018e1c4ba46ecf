"""The batch runner from a file of requests to a file of answers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from common.batches.objects import BatchErrors, Counts
from common.settings import Settings
from common.wire import Failed, Job
from tests.integration.batches.runners import (
    COMPLETIONS,
    Batches,
    answer,
    batches,
    hold_after,
    prompt_of,
    request,
    requests,
    runner,
    settings_for,
    worker,
)
from tests.integration.client.fake_worker import FakeWorker, until

pytestmark = pytest.mark.usefixtures("quick")


async def test_every_line_is_answered_once(settings: Settings, here: Batches) -> None:
    async with worker(settings, answer) as fake, runner(settings):
        batch = await here.create(requests(300, max_tokens=5), weight=2.0)
        ended = await here.ended(batch)
    assert (ended.status, ended.request_counts, ended.errors) == ("completed", Counts(300, 300, 0), None)
    assert ended.error_file_id is None
    assert ended.model == "scripted"
    times = [ended.created_at, ended.in_progress_at, ended.finalizing_at, ended.completed_at]
    assert times == sorted(time for time in times if time is not None)
    results = await here.results(ended.output_file_id)
    assert set(results) == {f"line {number}" for number in range(300)}
    one = results["line 7"]
    assert one["id"] == f"batch_req_{batch.id.removeprefix('batch_')}_8"
    assert one["error"] is None
    assert one["response"]["status_code"] == 200
    assert one["response"]["body"]["choices"][0]["text"] == "ok"
    assert one["response"]["body"]["id"] == f"cmpl-{one['response']['request_id']}"
    usage = ended.usage
    assert usage is not None
    assert usage.input_tokens == sum(len(f"prompt {number}") for number in range(300))
    assert usage.output_tokens == 300 * 3
    jobs = list(fake.jobs.values())
    assert {(job.job_class, job.tenant, job.weight, job.deadline) for job in jobs} == {
        ("batch", "team", 2.0, float(batch.expires_at or 0))
    }
    assert fake.taken == 300


async def test_results_are_a_file_of_their_owner(settings: Settings, here: Batches, tmp_path: Path) -> None:
    async with worker(settings, answer), runner(settings):
        ended = await here.ended(await here.create(requests(3), output_expires_after=4000))
    assert ended.output_file_id is not None
    file = await here.store.file("team", ended.output_file_id)
    stored = tmp_path / "storage" / "files" / ended.output_file_id
    assert (file.purpose, file.filename, file.bytes) == (
        "batch_output",
        f"{ended.id}_output.jsonl",
        stored.stat().st_size,
    )
    assert file.expires_at == file.created_at + 4000
    assert stored.stat().st_mode & 0o777 == 0o600
    assert here.parts() == []


async def test_lines_that_are_refused_have_the_live_routes_errors(settings: Settings, here: Batches) -> None:
    lines = [
        request("good"),
        request("long", "x" * 500),
        request("wrong", temperature=-1.0),
        {"custom_id": "none", "method": "POST", "url": COMPLETIONS, "body": {"model": "scripted"}},
        request("odd", prompt=5),
        request("number", model=7),
    ]
    async with worker(settings, answer) as fake, runner(settings):
        ended = await here.ended(await here.create(lines))
    assert (ended.status, ended.request_counts) == ("completed", Counts(6, 1, 5))
    assert set(await here.results(ended.output_file_id)) == {"good"}
    errors = await here.results(ended.error_file_id)
    bodies = {name: line["response"]["body"]["error"] for name, line in errors.items()}
    assert {line["response"]["status_code"] for line in errors.values()} == {422}
    assert {line["error"] for line in errors.values()} == {None}
    assert {name: body["param"] for name, body in bodies.items()} == {
        "long": "prompt",
        "wrong": "temperature",
        "none": "prompt",
        "odd": "prompt",
        "number": "model",
    }
    assert bodies["long"]["code"] == "context_length_exceeded"
    assert fake.taken == 1


async def test_a_file_without_one_good_line_has_no_output_file(settings: Settings, here: Batches) -> None:
    async with worker(settings, answer), runner(settings):
        ended = await here.ended(await here.create([request("a", "x" * 500)]))
    assert (ended.status, ended.output_file_id, ended.request_counts) == ("completed", None, Counts(1, 0, 1))
    assert ended.usage is None
    assert set(await here.results(ended.error_file_id)) == {"a"}


@pytest.mark.parametrize(
    ("lines", "errors"),
    [
        (b"", [("empty_file", None, None)]),
        (b"no json\n", [("invalid_json_line", None, 1)]),
        ([request("a"), request("a")], [("duplicate_custom_id", "custom_id", 2)]),
        ([request("a", model="unheard of"), request("b"), request("c", model="unheard of")], [
            ("model_not_found", "body.model", 1),
            ("model_not_found", "body.model", 3),
        ]),
        ([request("a", stream=True)], [("unsupported_value", "body.stream", 1)]),
    ],
)  # fmt: skip
async def test_a_wrong_file_fails_its_batch(
    settings: Settings, here: Batches, lines: Any, errors: list[tuple[str, str | None, int | None]]
) -> None:
    async with worker(settings, answer) as fake, runner(settings):
        ended = await here.ended(await here.create(lines))
    assert (ended.status, ended.output_file_id, ended.error_file_id) == ("failed", None, None)
    assert isinstance(ended.errors, BatchErrors)
    assert [(error.code, error.param, error.line) for error in ended.errors.data] == errors
    assert all(error.message for error in ended.errors.data)
    assert ended.request_counts == Counts()
    assert ended.failed_at is not None
    assert fake.taken == 0


async def test_models_are_those_of_the_owners_key(settings: Settings, here: Batches) -> None:
    async with worker(settings, answer), runner(settings):
        ended = await here.ended(await here.create(requests(2), models=["another"]))
    assert ended.errors is not None
    assert [(error.code, error.line) for error in ended.errors.data] == [("model_not_found", 1), ("model_not_found", 2)]


async def test_an_input_that_is_gone(settings: Settings, here: Batches, tmp_path: Path) -> None:
    batch = await here.create(requests(2))
    (tmp_path / "storage" / "files" / batch.input_file_id).unlink()
    async with runner(settings):
        ended = await here.ended(batch)
    assert ended.errors is not None
    assert [error.code for error in ended.errors.data] == ["file_not_found"]


async def test_no_more_lines_are_under_way_than_workers_have_room_for(settings: Settings, here: Batches) -> None:
    async with worker(settings, hold_after(0), slots=10) as fake, runner(settings):
        batch = await here.create(requests(100))
        await until(lambda: fake.taken == 20)
        queue = here.keys.queue("scripted", "batch")
        assert await here.redis.hget(here.keys.depth(queue), "jobs") in (None, b"0")
        fake.go.set()
        assert (await here.ended(batch)).request_counts.completed == 100


async def test_several_batches_take_turns(settings: Settings, here: Batches) -> None:
    answered = 0

    async def hold_what_is_long(fake: FakeWorker, job: Job) -> None:
        nonlocal answered
        if prompt_of(job).startswith("prompt"):
            answered += 1
            if answered > 100:
                await fake.accept(job)
                await fake.go.wait()
        await answer(fake, job)

    async with worker(settings, hold_what_is_long, slots=4) as fake, runner(settings):
        fake.taking = False
        long = await here.create(requests(400))
        short = await here.create([request(f"short {number}", f"short {number}") for number in range(10)])
        await here.reaches(short, "in_progress")
        fake.taking = True
        assert (await here.ended(short)).status == "completed"
        assert (await here.now(long)).open
        fake.go.set()
        assert (await here.ended(long)).request_counts == Counts(400, 400, 0)


async def test_lines_wait_for_a_worker(tmp_path: Path, redis_url: str) -> None:
    """Not for `queue_timeout` alone, but until their window is over."""
    settings = settings_for(tmp_path, redis_url, queue_timeout=0.3, stall_timeout=0.3)
    async with batches(settings) as here, runner(settings):
        batch = await here.create(requests(5))
        await here.reaches(batch, "in_progress")
        await asyncio.sleep(1.0)  # longer than a live request would wait
        async with worker(settings, hold_after(0)) as fake:
            await until(lambda: fake.taken == 5)
            await asyncio.sleep(1.0)  # longer than a live request might be silent
            fake.go.set()
            ended = await here.ended(batch)
    assert ended.request_counts == Counts(5, 5, 0)
    assert fake.taken == 5


async def test_a_line_that_was_lost_too_often_is_sent_anew(settings: Settings, here: Batches) -> None:
    attempts: list[str] = []

    async def fail_at_first(fake: FakeWorker, job: Job) -> None:
        attempts.append(job.id)
        await fake.accept(job)
        if len(attempts) <= settings.max_attempts:
            await fake.emit(job, Failed("generation", "out of order", retryable=True))
        else:
            await answer(fake, job)

    async with worker(settings, fail_at_first), runner(settings):
        ended = await here.ended(await here.create(requests(1)))
    assert ended.request_counts == Counts(1, 1, 0)
    assert attempts[0] == attempts[2] != attempts[3]


async def test_a_line_that_fails_by_itself_is_not_sent_again(settings: Settings, here: Batches) -> None:
    async def fail(fake: FakeWorker, job: Job) -> None:
        await fake.accept(job)
        await fake.emit(job, Failed("generation", "Request failed during generation: no"))

    async with worker(settings, fail) as fake, runner(settings):
        ended = await here.ended(await here.create(requests(1)))
    assert ended.request_counts == Counts(1, 0, 1)
    assert (await here.results(ended.error_file_id))["line 0"]["response"]["status_code"] == 424
    assert fake.taken == 1


async def test_a_full_queue_is_waited_for(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.batch.answering._LONGEST_PAUSE", 0.2)
    settings = settings_for(tmp_path, redis_url, queue_limit=2)
    async with batches(settings) as here, worker(settings, answer) as fake, runner(settings):
        fake.taking = False
        batch = await here.create(requests(20))
        await here.reaches(batch, "in_progress")
        queue = here.keys.queue("scripted", "batch")
        deadline = time.monotonic() + 30
        while int(await here.redis.hget(here.keys.depth(queue), "jobs") or 0) < 2:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        fake.taking = True
        assert (await here.ended(batch)).request_counts == Counts(20, 20, 0)


async def test_a_storage_that_is_full_is_waited_for(settings: Settings, here: Batches, tmp_path: Path) -> None:
    async with worker(settings, answer) as fake, runner(settings):
        batch = await here.create(requests(30))
        blocker = tmp_path / "storage" / "batches"
        blocker.write_bytes(b"a file where a folder has to be")
        await until(lambda: fake.taken == 30)
        await asyncio.sleep(0.3)  # a checkpoint is tried and fails
        assert (await here.now(batch)).request_counts == Counts(30, 0, 0)
        blocker.unlink()
        ended = await here.ended(batch)
    assert ended.request_counts == Counts(30, 30, 0)
    assert len(await here.results(ended.output_file_id)) == 30
    assert fake.taken == 30


async def test_files_may_be_elsewhere(tmp_path: Path, redis_url: str) -> None:
    """Anything that fsspec knows; lines are then read from a copy."""
    settings = settings_for(tmp_path, redis_url, batch_storage="memory://batches")
    lines = [request(str(number), f"{'one' if number % 2 else 'two'} and {number}") for number in range(40)]
    async with batches(settings) as here, worker(settings, answer), runner(settings):
        ended = await here.ended(await here.create(lines))
        assert ended.request_counts == Counts(40, 40, 0)
        assert set(await here.results(ended.output_file_id)) == {str(number) for number in range(40)}


async def test_expired_files_go(settings: Settings, here: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.batch.runner._SWEEP_SECONDS", 0.05)
    file_id = await here.upload(b"x")
    await here.redis.zadd(here.keys.file_expiry, {f"team/{file_id}": time.time() - 1})
    stored = Path(settings.batch_storage) / "files" / file_id
    assert stored.exists()
    async with runner(settings):
        await until(lambda: not stored.exists())
