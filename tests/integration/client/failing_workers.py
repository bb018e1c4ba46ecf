"""Workers that do not come to the end of their requests, and streams over them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from common.client import GenerationClient, TokenStream
from common.settings import Settings
from common.wire import Job, Tokens
from tests.integration.client.fake_worker import (
    Behaviour,
    FakeWorker,
    answer_all,
    finish,
    running,
    settings_for,
    text_of,
    token,
)


def quick(url: str, **values: Any) -> Settings:
    """Lost workers are noticed sooner than by default, yet no sooner than a client notices that it stood still itself: so do
    the fake workers beside it.
    """
    return settings_for(url, **{"heartbeat_seconds": 0.5, "worker_dead_after": 1.5, **values})


async def paced(worker: FakeWorker, job: Job) -> None:
    """A token every few milliseconds, behind those there are."""
    await worker.accept(job)
    count = job.parameters.max_new_tokens
    for index in range(len(job.generated_ids), count):
        await asyncio.sleep(0.005)
        await worker.emit(job, Tokens(index, [token(index)], finish(count) if index == count - 1 else None))


def first_attempts(*lost: Behaviour) -> Behaviour:
    """One behaviour for each attempt; later ones answer."""

    async def behaviour(worker: FakeWorker, job: Job) -> None:
        await (lost[job.attempt - 1] if job.attempt <= len(lost) else answer_all)(worker, job)

    return behaviour


async def half(worker: FakeWorker, job: Job, *, tokens: int = 2) -> None:
    """Two more tokens."""
    await worker.accept(job)
    for index in range(len(job.generated_ids), len(job.generated_ids) + tokens):
        await worker.emit(job, Tokens(index, [token(index)]))


async def half_and_hang(worker: FakeWorker, job: Job) -> None:
    await half(worker, job)
    await asyncio.Event().wait()


@asynccontextmanager
async def pair(
    settings: Settings, behaviour: Behaviour = paced
) -> AsyncIterator[tuple[GenerationClient, FakeWorker, FakeWorker]]:
    """Two workers; the second takes nothing until `second.taking` is set."""
    async with running(settings, behaviour) as (client, first):
        second = FakeWorker(settings, behaviour)
        second.taking = False
        await second.start()
        try:
            yield client, first, second
        finally:
            await second.stop()


async def text(stream: TokenStream) -> str:
    tokens = [token async for step in stream for token in step.tokens]
    assert [token.id for token in tokens] == stream.generated_ids
    return text_of(tokens)
