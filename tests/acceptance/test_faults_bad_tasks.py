"""Messages nobody should have sent, put straight into the queue: each fails alone."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from common.celery_message import celery_message
from common.parameters import GenerationParameters
from common.wire import Failed, Job, decode_step_frames
from ops.local_service import LocalService
from tests.acceptance.clients import generate, http_client, script, start_stream
from tests.acceptance.observation import KEYS, Observer, assert_alive, until

QUEUE = KEYS.queue("scripted", "interactive")
Change = Callable[[dict[str, Any]], object]


def message(request: str, change: Change, *, reply_to: str | None) -> bytes:
    """A job's message with something wrong in it; `change` gets the job as plain data."""
    job = Job(
        id=request,
        model="scripted",
        prompt_ids=[10, 11, 12],
        parameters=GenerationParameters(max_new_tokens=5, seed=1),
        submitted_at=time.time(),
        reply_to=reply_to,
    )
    envelope = json.loads(celery_message(job, QUEUE))
    task = json.loads(envelope["body"])
    change(task[0][0])
    return json.dumps({**envelope, "body": json.dumps(task)}).encode()


WRONG_JOBS: dict[str, tuple[Change, str]] = {
    "a type": (lambda job: job["parameters"].update(top_k="x"), "validation"),
    "a null among the stop strings": (lambda job: job["parameters"].update(stop=[None]), "validation"),
    "a null among the ids": (lambda job: job.update(prompt_ids=[1, None]), "validation"),
    "an id beyond the vocabulary": (lambda job: job.update(prompt_ids=[10**9]), "validation"),
    "a negative id": (lambda job: job.update(prompt_ids=[-1]), "validation"),
    "no prompt": (lambda job: job.update(prompt_ids=[]), "validation"),
    "no parameters": (lambda job: job.pop("parameters"), "validation"),
    "a temperature of zero": (lambda job: job["parameters"].update(sample=True, temperature=0.0), "validation"),
    "too many tokens": (lambda job: job["parameters"].update(max_new_tokens=10**9), "validation"),
    "no tokens": (lambda job: job["parameters"].update(max_new_tokens=0), "validation"),
    "a seed out of range": (lambda job: job["parameters"].update(seed=-1), "validation"),
    "another version": (lambda job: job.update(version=999), "unavailable"),
    "a version that is no number": (lambda job: job.update(version="new"), "unavailable"),
    "a deadline that is over": (lambda job: job.update(deadline=1.0), "timeout"),
}

_GOOD = message("garbled", lambda job: None, reply_to=None)
GARBAGE: dict[str, bytes] = {
    "random bytes": os.urandom(200),
    "not UTF-8, with a delivery tag": b'\xff\xfe{"properties": {"delivery_tag": "x1"}}',
    "nothing": b"",
    "a number": b"17",
    "another delivery tag behind": _GOOD + b' "delivery_tag": "elsewhere"',
    "half a message": _GOOD[: len(_GOOD) // 2],
    "half a message's end": _GOOD[len(_GOOD) // 2 :],
    "a body that is not JSON": json.dumps({**json.loads(_GOOD), "body": "{{{"}).encode(),
    "a body of another shape": json.dumps({**json.loads(_GOOD), "body": "{}"}).encode(),
    "a pickle": json.dumps({**json.loads(_GOOD), "content-type": "application/x-python-serialize"}).encode(),
    "headers that are a list": json.dumps({**json.loads(_GOOD), "headers": []}).encode(),
    "no headers": json.dumps({**json.loads(_GOOD), "headers": {}}).encode(),
    "another task": _GOOD.replace(b"tgq.generate", b"os.system"),
    "a deep nest": json.dumps({**json.loads(_GOOD), "body": "[" * 100_000}).encode(),
}


async def test_each_fails_alone(scripted_service: LocalService) -> None:
    service = scripted_service
    with Observer(service) as seen:
        await seen.until_heard()  # of an engine that another test had killed, too
        (before,) = seen.workers()
        async with http_client(service.url) as client:
            company = await start_stream(client, script("not disturbed ", repeat=40, step_ms=20))
            channel = KEYS.reply("test-of-bad-tasks")
            with seen.redis.pubsub() as replies:  # type: ignore[no-untyped-call]
                replies.subscribe(channel)
                for number, (change, _) in enumerate(WRONG_JOBS.values()):
                    seen.redis.lpush(QUEUE, message(f"bad-{number}", change, reply_to=channel))
                    seen.redis.lpush(QUEUE, message(f"unheard-{number}", change, reply_to=None))
                for garbage in GARBAGE.values():
                    seen.redis.lpush(QUEUE, garbage)
                assert await generate(client, script("Next, please.")) == "Next, please."
                told: dict[str, str] = {}

                def all_told() -> bool:
                    while reply := replies.get_message(ignore_subscribe_messages=True):
                        for frame in decode_step_frames(reply["data"]).frames:
                            assert isinstance(frame.body, Failed), frame
                            told[frame.request] = frame.body.error_type
                    return len(told) == len(WRONG_JOBS)

                await until(all_told, 30, "an answer to each")
            expected = {f"bad-{number}": error for number, (_, error) in enumerate(WRONG_JOBS.values())}
            assert told == expected
            assert await company.finish() == "not disturbed " * 40
            await seen.until_idle(20)
        (after,) = seen.workers()
        assert (after.id, after.engine_pid) == (before.id, before.engine_pid)
    assert_alive(*service.web, *service.workers)


@pytest.mark.parametrize("worth", ["garbage", "wrong jobs"])
async def test_many_in_a_row_are_passed_by(scripted_service: LocalService, worth: str) -> None:
    with Observer(scripted_service) as seen:
        for number in range(300):
            wrong = message(f"row-{number}", lambda job: job.pop("prompt_ids"), reply_to=None)
            seen.redis.lpush(QUEUE, wrong if worth == "wrong jobs" else os.urandom(50))
        async with http_client(scripted_service.url) as client:
            answers = await asyncio.gather(*(generate(client, script(f"good {number}")) for number in range(20)))
        assert answers == [f"good {number}" for number in range(20)]
        await seen.until_idle(20)
    assert_alive(*scripted_service.workers)
