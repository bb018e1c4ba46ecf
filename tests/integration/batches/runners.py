"""A batch runner in this process, on a tiny tokenizer and a real Redis, answered by the fake worker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from common.batches.objects import (
    BatchObject,
    BatchRequest,
    BatchStatus,
    Endpoint,
    FileObject,
    new_batch_id,
    new_file_id,
)
from common.batches.storage import Storage, file_name
from common.batches.store import BatchStore
from common.keys import Keys
from common.redis_clients import async_redis
from common.settings import Settings
from common.wire import Finish, Job, ModelCard, Token, Tokens
from tests.byte_model import CONTEXT, EOS, write_byte_model
from tests.integration.client.fake_worker import Behaviour, FakeWorker
from workers.batch.runner import BatchRunner

COMPLETIONS: Endpoint = "/v1/completions"
TENANT = "team"


def request(custom_id: str, prompt: Any = "Hi", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": {"prompt": prompt} | body}


def requests(count: int, **body: Any) -> list[dict[str, Any]]:
    return [request(f"line {number}", f"prompt {number}", **body) for number in range(count)]


class Results(dict[str, dict[str, Any]]):
    """The lines of a file by their `custom_id`."""

    @classmethod
    def of(cls, data: bytes) -> Results:
        lines = [json.loads(line) for line in data.splitlines()]
        results = cls({line["custom_id"]: line for line in lines})
        assert len(results) == len(lines), "a line is there twice"
        return results


class Batches:
    """What a web node does: files in and out, batches made and looked at."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.redis = async_redis(settings)
        self.keys = Keys(settings.key_prefix)
        self.store = BatchStore(self.redis, self.keys, settings)
        self.storage = Storage(settings)

    async def upload(self, data: bytes) -> str:
        file_id = new_file_id()
        async with self.storage.writer(file_name(file_id)) as writer:
            await writer.write(data)
        file = FileObject(
            id=file_id, bytes=len(data), created_at=int(time.time()), filename="in.jsonl", purpose="batch"
        )
        await self.store.put_file(TENANT, file)
        return file_id

    async def create(
        self, lines: Iterable[dict[str, Any]] | bytes, *, seconds: int = 3600, **request: Any
    ) -> BatchObject:
        data = lines if isinstance(lines, bytes) else b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        now = int(time.time())
        batch = BatchObject(
            id=new_batch_id(),
            endpoint=COMPLETIONS,
            input_file_id=await self.upload(data),
            completion_window="24h",
            created_at=now,
            expires_at=now + seconds,
        )
        return await self.store.create(TENANT, batch, BatchRequest(**request))

    async def now(self, batch: BatchObject) -> BatchObject:
        return await self.store.batch(TENANT, batch.id)

    async def ended(self, batch: BatchObject, seconds: float = 60.0) -> BatchObject:
        deadline = time.monotonic() + seconds
        while (now := await self.now(batch)).open:
            assert time.monotonic() < deadline, f"it is still {now}"
            await asyncio.sleep(0.02)
        return now

    async def reaches(self, batch: BatchObject, status: BatchStatus, done: int = 0, seconds: float = 60.0) -> None:
        """Wait for a status, and for so many lines to be counted as done."""
        deadline = time.monotonic() + seconds
        while True:
            now = await self.now(batch)
            if now.status == status and now.request_counts.completed + now.request_counts.failed >= done:
                return
            assert time.monotonic() < deadline, f"it is still {now}"
            await asyncio.sleep(0.02)

    async def results(self, file_id: str | None) -> Results:
        assert file_id is not None
        return Results.of(b"".join([chunk async for chunk in self.storage.chunks(file_name(file_id))]))

    def parts(self) -> list[Path]:
        """The objects of batches that are in storage."""
        folder = Path(self.settings.batch_storage) / "batches"
        return [path for path in folder.rglob("*") if path.is_file()]


def settings_for(folder: Path, redis_url: str, **values: Any) -> Settings:
    if not (folder / "models").exists():
        write_byte_model(folder)
    return Settings.of(
        redis_url=redis_url,
        model_id="scripted",
        cache_dir=folder,
        **{"batch_storage": str(folder / "storage"), "batch_lease_seconds": 10.0, **values},
    )


@asynccontextmanager
async def batches(settings: Settings) -> AsyncIterator[Batches]:
    made = Batches(settings)
    try:
        yield made
    finally:
        await made.redis.aclose()


@asynccontextmanager
async def runner(settings: Settings) -> AsyncIterator[BatchRunner]:
    """Stopped in the end as by SIGTERM."""
    stopping = asyncio.Event()
    runner = BatchRunner(settings)
    running = asyncio.create_task(runner.run(stopping))
    try:
        yield runner
    finally:
        stopping.set()
        async with asyncio.timeout(60):
            await running


@asynccontextmanager
async def worker(settings: Settings, behaviour: Behaviour, slots: int = 64) -> AsyncIterator[FakeWorker]:
    fake = FakeWorker(settings, behaviour)
    fake.job_class = "batch"
    fake.card = ModelCard(
        model_id="scripted",
        dtype="torch.float32",
        device_type="scripted",
        max_total_tokens=CONTEXT,
        max_batch_total_tokens=slots * CONTEXT,
        max_batch_size=slots,
    )
    await fake.start()
    try:
        yield fake
    finally:
        await fake.stop()


def prompt_of(job: Job) -> str:
    """Of a job of the tiny tokenizer, whose tokens are bytes (a space is one of its own alphabet)."""
    return "".join(chr(byte) for byte in job.prompt_ids)


async def answer(fake: FakeWorker, job: Job) -> None:
    """`ok` and the end of the text."""
    await fake.accept(job)
    tokens = [Token(111, "o", -0.5, False), Token(107, "k", -0.5, False), Token(EOS, "<end>", -0.5, True)]
    await fake.emit(job, Tokens(0, tokens, Finish("eos_token", len(tokens), 0.01)))


def hold_after(count: int) -> Behaviour:
    """Answers so many jobs and holds the others until `go` is set."""

    async def behave(fake: FakeWorker, job: Job) -> None:
        if fake.taken > count:
            await fake.accept(job)
            await fake.go.wait()
        await answer(fake, job)

    return behave
