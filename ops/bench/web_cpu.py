"""What a request costs a web process in CPU time: TGI's route beside the chat route, and the tokenizing in it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import uvloop

from common.chat_template import ChatTemplate
from common.model_files import find_model
from common.protocols.chat_messages import read_messages
from common.settings import Settings
from common.tokenizer import Tokenizer
from ops import process_figures
from ops.bench.load import BadAnswer
from ops.local_service import LocalService

CONNECTIONS = 8
REQUESTS = 160
"""Of each kind in a round."""
MESSAGES = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Say hello to the people of the town, and tell them when the next train goes."},
]
KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "generate": ("/generate", {"inputs": MESSAGES[1]["content"], "parameters": {"max_new_tokens": 4}}),
    "chat": ("/v1/chat/completions", {"model": "tgi", "messages": MESSAGES, "max_tokens": 4}),
}


@dataclass(slots=True)
class WebCpuFigures:
    """Seconds of CPU time a request, round by round, run in turn."""

    spent: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    tokenizing: list[float] = field(default_factory=list)
    """The chat's prompt."""

    @property
    def chat(self) -> float:
        """What a chat request costs beyond its tokenizing: the median over the rounds."""
        return median(chat - alone for chat, alone in zip(self.spent["chat"], self.tokenizing, strict=True))

    @property
    def chat_added(self) -> float:
        """What it costs beyond TGI's route: the median over the rounds."""
        pairs = zip(self.spent["chat"], self.spent["generate"], strict=True)
        return median(chat - generate for chat, generate in pairs)


def measure(directory: Path, *, rounds: int = 9) -> WebCpuFigures:
    """Measure after one round that does not count."""
    settings = {"MODEL_ID": "scripted", "TGQ_ENGINE_TARGET": "ops.bench.ready_made:run", "LOG_LEVEL": "error"}
    files = find_model(Settings(), weights=False)
    tokenizer = Tokenizer(files)
    prompt = ChatTemplate.of(files).render(read_messages(MESSAGES))
    figures = WebCpuFigures()
    with LocalService(settings, directory=directory / "web_cpu") as service:
        (web,) = process_figures.children(service.web[0].pid)

        def spend(kind: str) -> float:
            before = process_figures.cpu_seconds(web)
            uvloop.run(_ask(service.url, *KINDS[kind]))
            return (process_figures.cpu_seconds(web) - before) / REQUESTS

        for kind in KINDS:
            spend(kind)
        for _ in range(rounds):
            for kind, spent in figures.spent.items():
                spent.append(spend(kind))
            figures.tokenizing.append(_cpu(lambda: tokenizer.ids(prompt, add_special_tokens=False)))
    return figures


def _cpu(work: Callable[[], object]) -> float:
    begin = time.process_time()
    for _ in range(REQUESTS):
        work()
    return (time.process_time() - begin) / REQUESTS


async def _ask(url: str, path: str, body: dict[str, object]) -> None:
    address = urlsplit(url)
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(payload) + payload

    async def one() -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        for _ in range(REQUESTS // CONNECTIONS):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise BadAnswer(head.decode())
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
        writer.close()

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))
