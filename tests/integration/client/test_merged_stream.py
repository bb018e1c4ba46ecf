"""Several jobs read as one, against a real server and a worker that behaves as each test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from common.client import GenerationClient, merged_stream, token_buffer
from common.client.merged_stream import MergedStream
from common.errors import GenerationFailed, IncompleteGeneration, Overloaded, RequestCancelled
from common.wire import Failed, Job, Tokens
from tests.integration.client.fake_worker import (
    FakeWorker,
    accept_and_hang,
    expected_text,
    finish,
    parameters,
    running,
    settings_for,
    text_of,
    token,
    until,
)

FAILING = [9]
"""Prompts with these ids fail after two tokens."""


def merged(
    client: GenerationClient, prompts: Sequence[list[int]], *, count: int = 5, children: int = 1
) -> MergedStream:
    asked = msgspec.structs.replace(parameters(count), children=children)
    return MergedStream([client.generate(client.new_job(prompt, asked)) for prompt in prompts])


async def read(stream: MergedStream, heard: list[Tokens]) -> None:
    """Keeps what was heard, whatever ends it."""
    async for event in stream:
        heard.append(event)  # noqa: PERF401


async def by_children(worker: FakeWorker, job: Job) -> None:
    """All children in turn, a token each; those with a small index end first. Failing prompts fail."""
    await worker.accept(job)
    children, count = job.parameters.children, job.parameters.max_new_tokens
    for index in range(count):
        for child in range(children):
            last = index == count - 1
            await worker.emit(
                job,
                Tokens(
                    index, [token(index)], finish(count) if last else None, child, children - 1 - child if last else 0
                ),
            )
        if job.prompt_ids == FAILING and index == 1:
            await worker.emit(job, Failed("generation", "Request failed during generation: on purpose"))
            return


async def test_children_are_numbered_prompt_by_prompt(redis_url: str) -> None:
    async with running(settings_for(redis_url), by_children) as (client, worker):
        async with merged(client, [[1], [2], [3]], children=2) as stream:
            events = [event async for event in stream]
        for child in range(6):
            own = [event for event in events if event.child == child]
            assert text_of([token for event in own for token in event.tokens]) == expected_text(5)
            assert [event.finish is not None for event in own] == [*[False] * (len(own) - 1), True]
        ends = [event for event in events if event.finish is not None]
        assert [event.unfinished for event in ends] == [5, 4, 3, 2, 1, 0]
        assert [event.ends for event in events] == [*[False] * (len(events) - 1), True]
        assert (stream.ended, stream.error, stream.finish) == (True, None, finish(5))
        times = stream.timings
        assert None not in (times.queued, times.accepted, times.first_token, times.last_token, times.ended)
        assert client.open_streams == 0
        await until(lambda: len(worker.released) == 3)
        assert worker.cancelled == []


async def test_one_failure_ends_all(redis_url: str) -> None:
    """The error comes behind the tokens that there are; what the others would still do is cancelled."""

    async def behave(worker: FakeWorker, job: Job) -> None:
        await (by_children if job.prompt_ids == FAILING else accept_and_hang)(worker, job)

    async with running(settings_for(redis_url), behave) as (client, worker):
        heard: list[Tokens] = []
        async with merged(client, [[1], FAILING, [3]]) as stream:
            with pytest.raises(GenerationFailed, match="on purpose"):
                await read(stream, heard)
        assert {event.child for event in heard} == {1}
        assert text_of([token for event in heard for token in event.tokens]) == expected_text(2)
        assert isinstance(stream.error, GenerationFailed)
        assert client.open_streams == 0
        others = {job.id for job in worker.jobs.values() if job.prompt_ids != FAILING}
        await until(lambda: set(worker.cancelled) >= others)


async def test_closing_cancels_every_job_and_tells_a_reader_that_waits(redis_url: str) -> None:
    async with running(settings_for(redis_url), accept_and_hang) as (client, worker):
        for given in (None, RequestCancelled()):
            stream = merged(client, [[1], [2]])
            await stream.__aenter__()
            reader = asyncio.create_task(anext(stream))
            await until(lambda: worker.running == 2)
            assert not await stream.ready(0.01)
            stream.close(given)
            stream.close()
            with pytest.raises(IncompleteGeneration if given is None else RequestCancelled):
                async with asyncio.timeout(30):
                    await reader
            assert await stream.ready(0)
            await until(lambda: worker.running == 0)
            assert client.open_streams == 0
        assert len(worker.cancelled) == 4


async def test_a_reader_that_pauses_loses_nothing(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More waits than the stream holds: the jobs' own streams hold the rest."""
    monkeypatch.setattr(merged_stream, "UNREAD_FRAMES", 2)
    async with running(settings_for(redis_url), by_children) as (client, worker):
        async with merged(client, [[1], [2], [3]], count=40, children=2) as stream:
            await until(lambda: worker.running == 0 and worker.taken == 3)
            assert not stream.ended
            texts = dict.fromkeys(range(6), "")
            async for event in stream:
                texts[event.child] += text_of(event.tokens)
        assert set(texts.values()) == {expected_text(40)}


async def test_a_reader_that_stops_is_given_up(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_stream, "UNREAD_FRAMES", 2)
    monkeypatch.setattr(token_buffer, "UNREAD_FRAMES", 4)
    monkeypatch.setattr(token_buffer, "SLOW_READER_SECONDS", 0.05)

    async def behave(worker: FakeWorker, job: Job) -> None:
        await worker.accept(job)
        for index in range(1_000_000):
            await worker.emit(job, Tokens(index, [token(index)]))
            await asyncio.sleep(0.005)

    async with running(settings_for(redis_url), behave) as (client, worker):
        async with merged(client, [[1], [2]], count=1_000_000) as stream:
            await until(lambda: len(worker.cancelled) == 2)
            with pytest.raises(IncompleteGeneration, match="too slowly"):
                await read(stream, [])
        assert client.open_streams == 0


async def test_a_full_queue_takes_none_of_them(redis_url: str) -> None:
    async with running(settings_for(redis_url, queue_limit=2), accept_and_hang) as (client, worker):
        worker.taking = False
        stream = merged(client, [[1], [2], [3]])
        with pytest.raises(Overloaded):
            await stream.__aenter__()
        assert client.open_streams == 0
        await until(lambda: client.idle)  # those that were in the queue are out of it
        worker.taking = True
        async with merged(client, [[4]]):
            await until(lambda: any(job.prompt_ids == [4] for job in worker.jobs.values()))
        assert all(job.prompt_ids == [4] for job in worker.jobs.values())
