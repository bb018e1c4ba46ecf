"""OpenAI's Python client, unmodified: files and batches from upload to results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Batch

from ops.local_service import LocalService
from tests.acceptance.batches import by_id, content, jsonl, line, saying
from tests.acceptance.chat import CHAT

SECONDS = 120


@pytest.fixture(scope="module")
def client(batch_service: LocalService) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{batch_service.url}/v1", api_key="none", timeout=SECONDS, max_retries=0) as client:
        yield client


def submit(client: OpenAI, lines: list[dict[str, Any]], endpoint: Any = CHAT, **fields: Any) -> Batch:
    file = client.files.create(file=("requests.jsonl", jsonl(lines)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields)


def until(client: OpenAI, batch: Batch, reached: Callable[[Batch], bool]) -> Batch:
    deadline = time.monotonic() + SECONDS
    while not reached(batch):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def ended(batch: Batch) -> bool:
    return batch.status in ("completed", "failed", "expired", "cancelled")


def test_from_upload_to_results(client: OpenAI) -> None:
    file = client.files.create(
        file=("requests.jsonl", jsonl([saying("a", "one"), saying("b", "two"), saying("c", "three")])), purpose="batch"
    )
    assert client.files.wait_for_processing(file.id).status == "processed"
    batch = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"run": "first"}
    )
    assert batch.status == "validating"
    assert batch.expires_at is not None
    assert batch.expires_at - batch.created_at == 24 * 3600
    batch = until(client, batch, ended)
    assert batch.status == "completed"
    assert batch.metadata == {"run": "first"}
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (3, 3, 0)
    times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
    assert times == sorted(times, key=lambda at: at or 0)
    assert batch.usage is not None
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens > 0
    assert batch.error_file_id is None
    assert batch.output_file_id is not None
    output = client.files.retrieve(batch.output_file_id)
    assert output.purpose == "batch_output"
    text = client.files.content(batch.output_file_id).read()
    assert len(text) == output.bytes
    assert {name: content(entry) for name, entry in by_id(text).items()} == {"a": "one", "b": "two", "c": "three"}


def test_completions_and_failed_lines(client: OpenAI) -> None:
    url = "/v1/completions"
    lines = [
        line("fine", {"prompt": '<<script {"text": "yes"}>>', "max_tokens": 20}, url),
        line("hot", {"prompt": "Hello", "temperature": -1}, url),
        line("long", {"prompt": "Hello", "max_tokens": 10**9}, url),
    ]
    batch = until(client, submit(client, lines, url), ended)
    assert batch.status == "completed"
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    (answered,) = by_id(client.files.content(batch.output_file_id).read()).values()
    assert answered["response"]["body"]["choices"][0]["text"] == "yes"
    failed = by_id(client.files.content(batch.error_file_id).read())
    assert set(failed) == {"hot", "long"}
    for name, entry in failed.items():
        with pytest.raises(openai.APIStatusError) as live:
            client.completions.create(model="tgi", **next(each["body"] for each in lines if each["custom_id"] == name))
        assert entry["response"]["status_code"] == live.value.status_code
        assert entry["response"]["body"]["error"] == live.value.body


def test_cancelled_half_way(client: OpenAI) -> None:
    quick = [saying(f"quick {number}", "now") for number in range(20)]
    slow = [saying(f"slow {number}", " and on", repeat=400, step_ms=100) for number in range(20)]
    batch = submit(client, quick + slow)
    batch = until(client, batch, lambda seen: seen.request_counts is not None and seen.request_counts.completed >= 20)
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = until(client, batch, ended)
    assert batch.status == "cancelled"
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    assert set(by_id(client.files.content(batch.output_file_id).read())) == {entry["custom_id"] for entry in quick}
    left = by_id(client.files.content(batch.error_file_id).read())
    assert {name: entry["error"]["code"] for name, entry in left.items()} == {
        entry["custom_id"]: "batch_cancelled" for entry in slow
    }
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_a_wrong_file_fails_as_a_whole(client: OpenAI) -> None:
    batch = until(client, submit(client, [saying("same", "x"), saying("same", "y")]), ended)
    assert batch.status == "failed"
    assert batch.output_file_id is None
    assert batch.errors is not None
    assert batch.errors.data is not None
    (error,) = batch.errors.data
    assert (error.code, error.line) == ("duplicate_custom_id", 2)


def test_lists_go_on_page_by_page(client: OpenAI) -> None:
    made = [submit(client, [saying("a", "x")]).id for _ in range(5)]
    listed = []
    for batch in client.batches.list(limit=2):
        listed.append(batch.id)
        if set(made) <= set(listed):
            break
    assert listed[:5] == made[::-1]
    files = [file.id for file in client.files.list(purpose="batch", limit=2)]
    assert {client.batches.retrieve(batch_id).input_file_id for batch_id in made} <= set(files)
    for batch_id in made:
        until(client, client.batches.retrieve(batch_id), ended)


def test_files_can_be_deleted(client: OpenAI) -> None:
    file = client.files.create(file=("requests.jsonl", jsonl([saying("a", "x")])), purpose="batch")
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    with pytest.raises(openai.NotFoundError):
        client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


def test_what_is_refused_names_its_field(client: OpenAI) -> None:
    file = client.files.create(file=("requests.jsonl", jsonl([saying("a", "x")])), purpose="batch")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"endpoint": "/v1/embeddings", "completion_window": "24h"}, "endpoint"),
        ({"endpoint": CHAT, "completion_window": "7d"}, "completion_window"),
        ({"endpoint": CHAT, "completion_window": "24h", "metadata": {"x": "y" * 513}}, "metadata"),
    ]
    for fields, param in wrong:
        with pytest.raises(openai.BadRequestError) as refused:
            client.batches.create(input_file_id=file.id, **fields)
        assert param in str(refused.value)
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("notes.txt", b"x"), purpose="assistants")
