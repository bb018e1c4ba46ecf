"""Generation from one's own Python code, on the queue of a running service."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from celery import Celery

from common.errors import InvalidRequest, UnknownModel
from common.model_files import find_model
from common.producer import Producer
from common.settings import Settings
from common.tokenizer import Tokenizer
from ops.local_service import LocalService
from tests.acceptance.clients import script
from tests.acceptance.native import samples, settled, until, value

ROOT = Path(__file__).parents[2]


def settings_of(service: LocalService) -> Settings:
    return Settings.of(model_id="scripted", redis_url=service.redis_url)


@pytest.fixture
async def tgq(scripted_service: LocalService) -> AsyncIterator[Producer]:
    async with Producer(settings_of(scripted_service), job_class="batch", tenant="tests") as producer:
        yield producer


async def test_text_in_text_out(tgq: Producer) -> None:
    assert await tgq.chat(script("Paris")) == "Paris"
    assert await tgq.complete(script(" is the capital")) == " is the capital"
    prompts = [f"{number}" for number in range(100)]
    assert await asyncio.gather(*(tgq.chat(script(text)) for text in prompts)) == prompts


async def test_answers_are_those_of_the_routes(tgq: Producer, scripted_service: LocalService) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": script("one two three")}],
        "n": 2,
        "seed": 1,
        "logprobs": True,
    }
    ours = await tgq.answer("/v1/chat/completions", body)
    theirs = await asyncio.to_thread(httpx.post, f"{scripted_service.url}/v1/chat/completions", json=body, timeout=60)
    assert ours["choices"] == theirs.json()["choices"]
    assert ours["usage"] == theirs.json()["usage"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"temperature": -1}, "temperature"), ({"max_tokens": 10**9}, "max_new_tokens"), ({"stream": True}, "stream")],
)
async def test_bad_requests_are_refused(tgq: Producer, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        await tgq.chat("Hello", **fields)


async def test_unknown_names_are_refused(tgq: Producer) -> None:
    with pytest.raises(UnknownModel):
        await tgq.chat("Hello", model="another")
    with pytest.raises(InvalidRequest, match="endpoint"):
        await tgq.answer("/v1/embeddings", {})


async def test_a_cancelled_call_gives_up_its_place(tgq: Producer, scripted_service: LocalService) -> None:
    call = asyncio.create_task(tgq.chat(script(" and on", repeat=500, step_ms=100), max_tokens=2000))
    await asyncio.to_thread(until, lambda: running(scripted_service) == 1, "the call to run")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.to_thread(until, lambda: running(scripted_service) == 0, "the call to end")


def running(service: LocalService) -> float:
    return value(samples(service.url), "tgi_batch_current_size")


def decoded(service: LocalService) -> float:
    return value(samples(service.url), "tgi_batch_inference_count", method="decode")


def test_the_example_of_the_readme_runs(scripted_service: LocalService, tmp_path: Path) -> None:
    blocks = re.findall(r"^```\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    (example,) = [block for block in blocks if "common.producer" in block]
    (tmp_path / "example.py").write_text(example)
    environment = {**os.environ, "REDIS_URL": scripted_service.redis_url, "MODEL_ID": "scripted"}
    ended = subprocess.run(
        [sys.executable, tmp_path / "example.py"],
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    # The scripted model says this to whatever has no script.
    assert [text.count("The quick brown fox") > 0 for text in ended.stdout.splitlines()] == [True] * 3


def test_a_plain_celery_producer_can_enqueue(scripted_service: LocalService) -> None:
    """With nothing of ours but the message's shape; it ends in Celery's eyes when it is generated."""
    settings = settings_of(scripted_service)
    tokenizer = Tokenizer(find_model(settings, weights=False))
    app = Celery("somebody", broker=scripted_service.redis_url)
    job_id = uuid.uuid4().hex
    job = {
        "id": job_id,
        "model": "scripted",
        "prompt_ids": tokenizer.ids(script("to nobody", repeat=3)),
        "parameters": {"max_new_tokens": 50, "seed": 1},
        "submitted_at": time.time(),
    }
    before = decoded(scripted_service)
    app.send_task("tgq.generate", [job], queue="tgq:queue:scripted:batch", task_id=job_id, ignore_result=True)
    until(lambda: decoded(scripted_service) > before, "the job to be generated")
    settled(scripted_service)
