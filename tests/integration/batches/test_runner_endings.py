"""Batches that do not come to their own end: cancelled, expired, failed; and who is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import openai
import pytest

from common.batches.objects import Counts
from common.errors import BadRequest
from common.settings import Settings
from common.wire import Job
from tests.integration.batches.runners import (
    TENANT,
    Batches,
    answer,
    batches,
    hold_after,
    requests,
    runner,
    settings_for,
    worker,
)
from tests.integration.client.fake_worker import FakeWorker, until

pytestmark = pytest.mark.usefixtures("quick")
SECRET = "whsec_c29tZSBzZWNyZXQ="


async def test_cancelled_half_way(settings: Settings, here: Batches) -> None:
    async with worker(settings, hold_after(50), slots=8) as fake, runner(settings):
        batch = await here.create(requests(100))
        await until(lambda: fake.taken == 50 + 16)
        await here.reaches(batch, "in_progress", done=50)
        assert (await here.store.cancel(TENANT, batch.id)).status == "cancelling"
        ended = await here.ended(batch)
        await until(lambda: not fake.running)
    assert (ended.status, ended.request_counts) == ("cancelled", Counts(100, 50, 50))
    done, left = await here.results(ended.output_file_id), await here.results(ended.error_file_id)
    assert set(done) | set(left) == {f"line {number}" for number in range(100)}
    assert {line["error"]["code"] for line in left.values()} == {"batch_cancelled"}
    assert {line["response"] for line in left.values()} == {None}
    assert len(fake.cancelled) == 16  # all that were under way
    assert here.parts() == []


async def test_cancelled_before_anything_was_sent(settings: Settings, here: Batches) -> None:
    batch = await here.create(requests(5))
    await here.store.cancel(TENANT, batch.id)
    async with worker(settings, answer) as fake, runner(settings):
        ended = await here.ended(batch)
    assert (ended.status, ended.output_file_id, ended.error_file_id) == ("cancelled", None, None)
    assert fake.taken == 0


async def test_cancelled_while_nobody_ran_it(settings: Settings, here: Batches) -> None:
    """The next runner keeps what was done."""
    async with worker(settings, hold_after(20), slots=8):
        async with runner(settings):
            batch = await here.create(requests(40))
            await here.reaches(batch, "in_progress", done=20)
        await here.store.cancel(TENANT, batch.id)
        async with runner(settings):
            ended = await here.ended(batch)
    assert (ended.status, ended.request_counts) == ("cancelled", Counts(40, 20, 20))
    assert len(await here.results(ended.output_file_id)) == 20


async def test_the_window_ends(settings: Settings, here: Batches) -> None:
    async with worker(settings, hold_after(10), slots=8) as fake, runner(settings):
        batch = await here.create(requests(30), seconds=5)
        ended = await here.ended(batch)
        await until(lambda: not fake.running)
    assert (ended.status, ended.request_counts) == ("expired", Counts(30, 10, 20))
    assert ended.expired_at is not None
    assert ended.expired_at >= (batch.expires_at or 0)
    left = await here.results(ended.error_file_id)
    assert {line["error"]["code"] for line in left.values()} == {"batch_expired"}
    assert len(await here.results(ended.output_file_id)) == 10


async def test_the_window_ended_before_a_runner_came(settings: Settings, here: Batches) -> None:
    batch = await here.create(requests(3), seconds=-1)
    async with runner(settings):
        ended = await here.ended(batch)
    assert (ended.status, ended.output_file_id, ended.error_file_id) == ("expired", None, None)


async def test_an_error_nobody_expected_fails_the_batch_and_keeps_what_is_done(
    settings: Settings, here: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with worker(settings, hold_after(20), slots=8) as fake:
        async with runner(settings):
            batch = await here.create(requests(40))
            await until(lambda: fake.taken == 20 + 16)
            await here.reaches(batch, "in_progress", done=20)

        async def broken(*_arguments: object) -> None:
            raise ArithmeticError

        monkeypatch.setattr("workers.batch.lane.Lane._find", broken)
        async with runner(settings):
            ended = await here.ended(batch)
        assert fake.taken == 20 + 16
    assert (ended.status, ended.request_counts) == ("failed", Counts(40, 20, 20))
    assert ended.errors is not None
    assert [error.code for error in ended.errors.data] == ["batch_failed"]
    assert len(await here.results(ended.output_file_id)) == 20
    left = await here.results(ended.error_file_id)
    assert {line["error"]["code"] for line in left.values()} == {"batch_failed"}


async def test_results_that_are_lost_fail_the_batch(settings: Settings, here: Batches) -> None:
    async with worker(settings, hold_after(20), slots=8):
        async with runner(settings):
            batch = await here.create(requests(40))
            await here.reaches(batch, "in_progress", done=20)
        for part in here.parts():
            part.unlink()
        async with runner(settings):
            ended = await here.ended(batch)
    assert (ended.status, ended.output_file_id) == ("failed", None)


async def test_what_is_over_cannot_be_cancelled(settings: Settings, here: Batches) -> None:
    async with worker(settings, answer), runner(settings):
        ended = await here.ended(await here.create(requests(1)))
    with pytest.raises(BadRequest):
        await here.store.cancel(TENANT, ended.id)


@contextmanager
def endpoint(*statuses: int) -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A server that answers with these, one after another and the last from then on; and what it was told."""
    told: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            told.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(statuses[min(len(told), len(statuses)) - 1])
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Webhooks are delivered and repeated in no time."""
    monkeypatch.setattr("workers.batch.webhooks.PAUSES", (0.05, 0.05))
    monkeypatch.setattr("workers.batch.webhooks._ENDS_SECONDS", 0.05)
    monkeypatch.setattr("workers.batch.runner._WEBHOOK_SECONDS", 0.05)


async def told_all(here: Batches) -> None:
    """Wait until nothing is left to be told."""
    deadline = time.monotonic() + 30
    while await here.redis.exists(here.keys.webhooks, here.keys.webhook_tries):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def hooked(folder: Path, redis_url: str, url: str) -> Settings:
    return settings_for(folder, redis_url, batch_webhook_url=url, batch_webhook_secret=SECRET)


@pytest.mark.usefixtures("soon")
async def test_the_end_is_told_until_it_is_heard(tmp_path: Path, redis_url: str) -> None:
    with endpoint(500, 200) as (url, told):
        settings = hooked(tmp_path, redis_url, url)
        async with batches(settings) as here, worker(settings, answer), runner(settings):
            ended = await here.ended(await here.create(requests(2)))
            await until(lambda: len(told) == 2)
            await told_all(here)
    client = openai.OpenAI(api_key="none", webhook_secret=SECRET)
    events = [client.webhooks.unwrap(body, headers) for headers, body in told]
    assert [event.type for event in events] == ["batch.completed"] * 2
    assert events[0] == events[1]
    assert events[0].model_dump()["data"]["id"] == ended.id
    assert told[0][0]["webhook-id"] == told[1][0]["webhook-id"] == events[0].id


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(("status", "tries"), [(500, 3), (410, 1)])
async def test_an_endpoint_that_never_hears_is_given_up(
    tmp_path: Path, redis_url: str, status: int, tries: int
) -> None:
    with endpoint(status) as (url, told):
        settings = hooked(tmp_path, redis_url, url)
        async with batches(settings) as here, runner(settings):
            await here.ended(await here.create(b"no json"))
            await told_all(here)
    assert len(told) == tries


@pytest.mark.usefixtures("soon")
async def test_a_webhook_outlives_its_runner(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(200) as (url, told):
        settings = hooked(tmp_path, redis_url, url)
        async with batches(settings) as here:
            monkeypatch.setattr("workers.batch.runner._WEBHOOK_SECONDS", 60.0)
            async with worker(settings, answer), runner(settings):
                ended = await here.ended(await here.create(requests(1)))
            assert not told
            monkeypatch.setattr("workers.batch.runner._WEBHOOK_SECONDS", 0.05)
            async with runner(settings):
                await until(lambda: len(told) == 1)
    assert ended.id.encode() in told[0][1]


async def test_jobs_of_a_runner_that_stops_are_cancelled(settings: Settings, here: Batches) -> None:
    async def hang(fake: FakeWorker, job: Job) -> None:
        await fake.accept(job)
        await asyncio.Event().wait()

    async with worker(settings, hang) as fake:
        async with runner(settings):
            await here.create(requests(5))
            await until(lambda: fake.taken == 5)
        marks = [here.keys.cancelled(job) for job in fake.jobs]
        assert await here.redis.exists(*marks) == 5
