"""A worker made of a few coroutines: it takes jobs from the real queue and publishes real frames."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.exceptions import RedisError

from common.background import stop_tasks
from common.celery_message import job_of
from common.client import GenerationClient
from common.fair_queue import FAIR_QUEUE
from common.keys import WORKER_RECORD_SECONDS, Keys
from common.parameters import GenerationParameters
from common.redis_clients import async_redis
from common.settings import Settings
from common.wire import (
    WIRE_VERSION,
    Accepted,
    Cancel,
    Cancelled,
    Control,
    Finish,
    Frame,
    FrameBody,
    Job,
    JobClass,
    ModelCard,
    Release,
    Resend,
    StepFrames,
    Token,
    Tokens,
    WorkerRecord,
    decode_control,
    encode_json,
    encode_msgpack,
)

MODEL = "scripted"

Behaviour = Callable[["FakeWorker", Job], Awaitable[None]]

TAKE_ONE = (
    FAIR_QUEUE
    + """
join_others(KEYS[1])
local message, tenant, turn = in_line(KEYS[1])
if not message then return false end
take(KEYS[1], tenant, turn, tail_of(message), 1)
settle()
return message
"""
)


def token(index: int) -> Token:
    return Token(index, f"<{index}>", -0.5, False)


def text_of(tokens: list[Token]) -> str:
    return "".join(token.text for token in tokens)


def expected_text(count: int) -> str:
    return text_of([token(index) for index in range(count)])


def parameters(count: int = 5) -> GenerationParameters:
    return GenerationParameters(max_new_tokens=count, seed=1)


def settings_for(url: str, **values: Any) -> Settings:
    return Settings.of(redis_url=url, model_id=MODEL, **values)


class FakeWorker:
    """Runs `behaviour` for every job; `frames` keeps what was sent of each attempt, as a worker's outbox does."""

    def __init__(self, settings: Settings, behaviour: Behaviour) -> None:
        self.id = f"fake-{secrets.token_hex(4)}"
        self.model = settings.model_name
        self.card: ModelCard | None = None
        """What it says of its model; without one it says nothing."""
        self.job_class: JobClass = "interactive"
        self.keys = Keys(settings.key_prefix)
        self.redis = async_redis(settings)
        self._take_one = self.redis.register_script(TAKE_ONE)
        self.frames: dict[tuple[str, int], list[Frame]] = {}
        self.jobs: dict[str, Job] = {}
        """By request: the newest attempt taken."""
        self.taken = 0
        self.refused: list[Job] = []
        """Attempts that were not the newest any more."""
        self.cancelled: list[str] = []
        self.disowned: list[Cancel] = []
        self.released: list[str] = []
        self.resends: list[Resend] = []
        self.answer_resends = True
        self.beating = True
        self.taking = True
        self.go = asyncio.Event()
        """For behaviours that wait for their test."""
        self._awake = asyncio.Event()
        self._awake.set()
        self._behaviour = behaviour
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """Of jobs, until they have ended: a cancellation may get lost (see `stop_tasks`)."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def running(self) -> int:
        return len(self._running)

    async def start(self) -> None:
        await self._beat_once()
        listening = asyncio.Event()
        self._tasks = [asyncio.create_task(work) for work in (self._take(), self._listen(listening), self._beat())]
        await listening.wait()

    async def stop(self) -> None:
        await stop_tasks([*self._tasks, *self._ending])
        await self.redis.aclose()

    def freeze(self) -> None:
        """As SIGSTOP does: neither beats nor frames nor jobs, until `thaw`."""
        self._awake.clear()

    def thaw(self) -> None:
        self._awake.set()

    # -- what behaviours use

    async def emit(self, job: Job, *bodies: FrameBody, lose: bool = False, attempt: int | None = None) -> None:
        """Number and publish frames as one step; `lose`: number them only."""
        sent = self.frames.setdefault((job.id, job.attempt), [])
        new = [Frame(job.id, attempt or job.attempt, len(sent) + index, body) for index, body in enumerate(bodies)]
        sent.extend(new)
        if not lose:
            await self.publish(job, new)

    async def publish(self, job: Job, frames: list[Frame], worker: str | None = None) -> None:
        assert job.reply_to is not None
        message = encode_msgpack(StepFrames(WIRE_VERSION, worker or self.id, frames))
        while True:
            await self._awake.wait()
            with suppress(RedisError):
                if await self.redis.publish(job.reply_to, message):
                    return
            await asyncio.sleep(0.05)

    async def accept(self, job: Job) -> None:
        await self.emit(job, Accepted(self.id))

    # -- inside

    async def _take(self) -> None:
        queue = self.keys.queue(self.model, self.job_class)
        while True:
            message = None
            await self._awake.wait()
            with suppress(RedisError):
                message = await self._take_one(keys=[queue]) if self.taking else None
            if message is None:
                await asyncio.sleep(0.002)
                continue
            assert isinstance(message, bytes)
            job = job_of(json.loads(json.loads(message)["body"])[0])
            if await self.redis.exists(self.keys.cancelled(job.id)):
                self.cancelled.append(job.id)
                continue
            if job.attempt < int(await self.redis.get(self.keys.attempt(job.id)) or 1):
                self.refused.append(job)
                continue
            self.taken += 1
            if (older := self._running.pop(job.id, None)) is not None:
                older.cancel()
            self.jobs[job.id] = job
            task = self._running[job.id] = asyncio.create_task(self._run(job))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _run(self, job: Job) -> None:
        try:
            await self._behaviour(self, job)
        finally:
            if self._running.get(job.id) is asyncio.current_task():
                del self._running[job.id]

    async def _listen(self, listening: asyncio.Event) -> None:
        while True:
            subscription = self.redis.pubsub()
            try:
                await subscription.subscribe(self.keys.control, self.keys.control_of(self.id))
                listening.set()
                while True:
                    message = await subscription.get_message(ignore_subscribe_messages=True, timeout=1.0)
                    await self._awake.wait()
                    if message is not None and message["type"] == "message":
                        await self._obey(decode_control(message["data"]))
            except RedisError:
                await asyncio.sleep(0.05)
            finally:
                with suppress(RedisError):
                    await subscription.aclose()  # type: ignore[no-untyped-call]

    async def _obey(self, message: Control) -> None:
        match message:
            case Cancel(request, below):
                if below is not None:
                    self.disowned.append(message)
                    if request in self.jobs and self.jobs[request].attempt >= below:
                        return
                task = self._running.pop(request, None)
                if task is not None:
                    task.cancel()
                    self.cancelled.append(request)
                    await self.emit(self.jobs[request], Cancelled())
            case Release(requests):
                self.released.extend(requests)
                self.frames = {key: frames for key, frames in self.frames.items() if key[0] not in requests}
            case Resend(request, attempt, start):
                self.resends.append(message)
                frames = self.frames.get((request, attempt), [])[start:]
                if self.answer_resends and frames:
                    await self.publish(self.jobs[request], frames)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            await self._awake.wait()
            if self.beating:
                with suppress(RedisError):
                    await self._beat_once()

    async def _beat_once(self) -> None:
        record = WorkerRecord(
            id=self.id,
            pid=os.getpid(),
            engine_pid=None,
            host="test",
            model=self.model,
            state="ready",
            started_at=time.time(),
            card=self.card,
        )
        seconds, micros = await self.redis.time()
        await self.redis.zadd(self.keys.workers, {self.id: seconds + micros / 1e6})
        await self.redis.set(self.keys.worker(self.id), encode_json(record), ex=WORKER_RECORD_SECONDS)


def finish(count: int) -> Finish:
    return Finish("length", count, 0.1)


async def answer_all(worker: FakeWorker, job: Job) -> None:
    """Accepts, then one token a step behind those there are, without a pause."""
    await worker.accept(job)
    count = job.parameters.max_new_tokens
    for index in range(len(job.generated_ids), count):
        await worker.emit(job, Tokens(index, [token(index)], finish(count) if index == count - 1 else None))


async def accept_and_hang(worker: FakeWorker, job: Job) -> None:
    await worker.accept(job)
    await asyncio.Event().wait()


@asynccontextmanager
async def running(
    settings: Settings, behaviour: Behaviour = answer_all
) -> AsyncIterator[tuple[GenerationClient, FakeWorker]]:
    """A started client beside a started fake worker."""
    worker = FakeWorker(settings, behaviour)
    client = GenerationClient(settings)
    await worker.start()
    await client.start()
    try:
        yield client, worker
    finally:
        await client.close()
        await worker.stop()


async def read_all(client: GenerationClient, count: int = 5, timeout: float | None = None) -> str:
    tokens: list[Token] = []
    async with client.generate(client.new_job([1, 2, 3], parameters(count)), timeout) as stream:
        async for step in stream:
            assert step.offset == len(tokens)
            tokens += step.tokens
    assert stream.finish is not None
    assert stream.finish.generated_tokens == count
    return text_of(tokens)


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for something that happens elsewhere."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)
