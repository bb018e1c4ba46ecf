"""Cases from other servers' bug reports, replayed: answers that go on at another worker, A28 and A29."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from common.model_files import find_model
from common.settings import Settings
from common.tokenizer import Tokenizer
from ops.local_service import LocalService
from tests.acceptance.native import script
from tests.acceptance.observation import Observer, until

HEARD = 5
"""Events of each stream before a worker dies."""
CALL = '<tool_call>\n{"name": "clock", "arguments": {"place": "Zürich", "zone": "a b c d e f g h"}}\n</tool_call>'
CLOCK = {"name": "clock", "parameters": {"properties": {"place": {"type": "string"}, "zone": {"type": "string"}}}}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "minLength": 150, "maxLength": 160}},
    "required": ["a"],
}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def service(two_workers: LocalService) -> LocalService:
    return two_workers


def asked(step_ms: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Streams that go on right only with the ids so far: each kind of state that a resumed answer must have again.

    All are about as long: none may be over by the time each has brought `HEARD` events.
    """
    tokenizer = Tokenizer(find_model(Settings.of(model_id="scripted"), weights=False))
    letters = [token for letter in "tokenization" for token in tokenizer.ids(letter, add_special_tokens=False)]
    assert len(letters) > len(tokenizer.ids("tokenization", add_special_tokens=False))

    def chat(text: str, **fields: Any) -> tuple[str, dict[str, Any]]:
        said = script(text, step_ms=step_ms, repeat=fields.pop("repeat", 1))
        return CHAT, {"messages": [{"role": "user", "content": said}], "max_tokens": 60, "seed": 3, **fields}

    drawn = {"temperature": 8, "frequency_penalty": 1.5, "presence_penalty": 1, "logprobs": 1, "max_tokens": 50}
    return {
        # The text of these tokens has other tokens.
        "ids": ("/generate_stream", {"inputs": script(ids=letters, repeat=4, step_ms=step_ms)}),
        "characters": ("/generate_stream", {"inputs": script("🤗한글é", repeat=5, step_ms=step_ms)}),
        "drawn": (TEXT, {"prompt": script("x", repeat=60, step_ms=step_ms), "seed": 3, **drawn}),
        "stop": chat("ABC DEFGXY ", repeat=9, stop=["DEFGH", "XYZ"]),
        "call": chat(CALL, tools=[{"type": "function", "function": CLOCK}], tool_choice="required"),
        "format": chat("no json", repeat=40, response_format={"type": "json", "value": SCHEMA}, max_tokens=80),
    }


async def hear(client: httpx.AsyncClient, path: str, body: dict[str, Any], heard: list[dict[str, Any]]) -> None:
    """Every event, in order; what differs from answer to answer is left out."""
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                for name in ("id", "created"):
                    event.pop(name, None)
                for choice in event.get("choices", ()):
                    for call in choice.get("delta", {}).get("tool_calls", ()):
                        call.pop("id", None)
                heard.append(event)


async def test_a28_a29_an_answer_goes_on_at_another_worker_as_if_nothing_had_happened(
    service: LocalService, client: httpx.AsyncClient, seen: Observer
) -> None:
    """Not a token twice, none lost, and none other than it would have been."""
    undisturbed: dict[str, list[dict[str, Any]]] = {name: [] for name in asked(0)}
    heard: dict[str, list[dict[str, Any]]] = {name: [] for name in undisturbed}
    await asyncio.gather(*(hear(client, *request, undisturbed[name]) for name, request in asked(0).items()))
    streams = [asyncio.create_task(hear(client, *request, heard[name])) for name, request in asked(110).items()]
    await until(lambda: all(len(events) >= HEARD for events in heard.values()), 20, "the first events of all")
    doomed = max(service.workers, key=lambda worker: seen.worker(worker.pid).running)
    cut = seen.worker(doomed.pid).running
    doomed.kill()
    assert cut >= len(streams) / 2
    async with asyncio.timeout(60):
        await asyncio.gather(*streams)
    for name, events in undisturbed.items():
        assert heard[name] == events, name
