"""A batch on the real model: what the same requests get live, to the letter."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from ops.batches.client import BatchClient
from ops.local_service import LocalService
from tests.acceptance.batches import by_id, jsonl, line
from tests.acceptance.chat import CHAT

LINES = int(os.environ.get("TGQ_BATCH_LINES", "12"))
SECONDS = 120 + 10 * LINES
TOPICS = ("rivers", "bread", "clocks", "winter", "bees", "maps", "trains", "salt")
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def request(number: int) -> dict[str, Any]:
    """Every other one has a schema; seeds differ, and a third is greedy."""
    topic = TOPICS[number % len(TOPICS)]
    common = {"seed": number, "temperature": 0.0 if number % 3 == 0 else 0.9, "max_tokens": 24}
    system = {"role": "system", "content": "You answer in few words."}
    if number % 2:
        question = f"Invent a person who loves {topic}, as JSON with name and age."
        schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        return {**common, "messages": [system, {"role": "user", "content": question}], "response_format": schema}
    return {**common, "messages": [system, {"role": "user", "content": f"Say something about {topic}."}]}


@pytest.fixture
def client(real_service: LocalService) -> Iterator[BatchClient]:
    runner = real_service.add_batch_worker()
    with BatchClient(real_service.url) as client:
        yield client
    runner.terminate()
    assert runner.wait(60) == 0
    real_service.batch_workers.remove(runner)


@pytest.mark.timeout(2 * SECONDS)
def test_batch_answers_are_the_live_ones(client: BatchClient, real_service: LocalService, tmp_path: Path) -> None:
    bodies = {str(number): request(number) for number in range(LINES)}
    source = tmp_path / "requests.jsonl"
    source.write_bytes(jsonl(line(name, body) for name, body in bodies.items()))
    batch = client.create(client.upload(source).id, CHAT, window="24h")
    deadline = time.monotonic() + SECONDS
    while batch.open:
        assert time.monotonic() < deadline, batch
        time.sleep(0.2)
        batch = client.batch(batch.id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", LINES, 0)
    assert batch.output_file_id is not None
    with (tmp_path / "out.jsonl").open("wb") as file:
        client.download(batch.output_file_id, file)
    answers = by_id((tmp_path / "out.jsonl").read_bytes())

    def ask(body: dict[str, Any]) -> Any:
        return httpx.post(real_service.url + CHAT, json=body, timeout=SECONDS).raise_for_status().json()

    with ThreadPoolExecutor(8) as pool:
        live = dict(zip(bodies, pool.map(ask, bodies.values()), strict=True))
    assert {name: said(entry["response"]["body"]) for name, entry in answers.items()} == {
        name: said(body) for name, body in live.items()
    }
    for name, body in bodies.items():
        choice = live[name]["choices"][0]
        if "response_format" in body and choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
    assert batch.usage is not None
    assert batch.usage.output_tokens == sum(body["usage"]["completion_tokens"] for body in live.values())


def said(body: dict[str, Any]) -> Any:
    """An answer without what is different each time."""
    return [body["choices"], body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"], body["model"]]
