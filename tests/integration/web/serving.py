"""A real web node on a tiny tokenizer, answered by the fake worker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from common.settings import Settings
from common.wire import Failed, Finish, Job, ModelCard, Token, Tokens
from ops.ports import free_port
from tests.byte_model import CONTEXT, EOS, write_byte_model
from tests.event_streams import data_of
from tests.integration.client.fake_worker import Behaviour, FakeWorker, settings_for


class WebNode:
    """`tgq web` as a process."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process = process
        self.url = url
        self._log = log

    def log_lines(self) -> list[dict[str, Any]]:
        """The structured lines logged so far."""
        whole, _, _ = self.log_text().rpartition("\n")  # the last line may be half written
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def log_text(self) -> str:
        return self._log.read_text(encoding="utf-8")


@contextmanager
def web_node(folder: Path, redis_url: str, **settings: Any) -> Iterator[WebNode]:
    """A running web node; `settings` are fields of `Settings`."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "models").exists():
        write_byte_model(folder)
    port = free_port("127.0.0.1")
    values = {
        "cache_dir": folder,
        "redis_url": redis_url,
        "model_id": "scripted",
        "hostname": "127.0.0.1",
        "port": port,
    }
    environment = {Settings.variable(name): str(value) for name, value in (values | settings).items()}
    log = folder / f"web-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "ops.cli", "web"], env=os.environ | environment, stdout=output, stderr=output
        )
    node = WebNode(process, f"http://127.0.0.1:{port}", log)
    try:
        _wait_for(node)
        yield node
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()


def _wait_for(node: WebNode) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            httpx.get(f"{node.url}/info")
            return
        except httpx.HTTPError:
            assert node.process.poll() is None, node.log_text()
            assert time.monotonic() < deadline, node.log_text()
            time.sleep(0.05)


@asynccontextmanager
async def worker(
    url: str,
    behaviour: Behaviour,
    name: str | None = None,
    *,
    adapters: list[str] | None = None,
    model_id: str = "scripted",
) -> AsyncIterator[FakeWorker]:
    """
    Args:
        name: what its model is called; default: the model of the web node.
        adapters: of its model. A worker with a name or with adapters says what its model is, as real ones do.
        model_id: where its model's files are.
    """
    fake = FakeWorker(settings_for(url, **({} if name is None else {"served_model_name": name})), behaviour)
    if name is not None or adapters is not None:
        fake.card = ModelCard(
            model_id=model_id,
            dtype="torch.float32",
            device_type="scripted",
            max_total_tokens=CONTEXT,
            max_batch_total_tokens=64 * CONTEXT,
            max_batch_size=64,
            adapters=adapters or [],
        )
    await fake.start()
    try:
        yield fake
    finally:
        await fake.stop()


def spoken(text: str) -> list[Token]:
    """One token a character, and the end-of-text token."""
    return [*(Token(ord(char) % 256, char, -0.25, False) for char in text), Token(EOS, "<end>", -0.125, True)]


def saying(text: str) -> Behaviour:
    """Emits the characters of `text`, one a step, then ends by itself."""

    async def behave(fake: FakeWorker, job: Job) -> None:
        await fake.accept(job)
        tokens = spoken(text)
        for index, token in enumerate(tokens):
            last = index == len(tokens) - 1
            await fake.emit(job, Tokens(index, [token], Finish("eos_token", len(tokens), 0.01) if last else None))

    return behave


def failing_after(count: int) -> Behaviour:
    async def behave(fake: FakeWorker, job: Job) -> None:
        await fake.accept(job)
        for index, token in enumerate(spoken("x" * count)[:count]):
            await fake.emit(job, Tokens(index, [token]))
        await fake.emit(job, Failed("generation", "Request failed during generation: broken on purpose"))

    return behave


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream."""
    return [json.loads(data) for data in data_of(text)]


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = 30.0) -> None:
    """Wait for something that a request can see."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.05)
