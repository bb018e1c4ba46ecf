"""Bytes of answers to records, however they are cut."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ops.bench.serve.apis import APIS
from ops.bench.serve.connection import Answer, BadHttp, Connection, Lost
from ops.bench.serve.events import EventSplitter
from ops.bench.serve.record import Record

BODY = b'data: {"a": 1}\n\n: hello\n\nid: 3\r\ndata:two\r\ndata: lines\r\n\r\nevent: error\ndata: x\n\n'
EVENTS = [b'{"a": 1}', b"two\nlines", b"x"]


@pytest.mark.parametrize("size", range(1, len(BODY) + 1))
def test_events_are_whole_however_they_are_cut(size: int) -> None:
    splitter = EventSplitter()
    found = [event for at in range(0, len(BODY), size) for event in splitter.feed(BODY[at : at + size])]
    assert found == EVENTS


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nTrailer: 1\r\n\r\n"
COUNTED = b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 11\r\n\r\nhello world"
UNTIL_CLOSE = HEAD + b"\r\nhello world"


class _Transport(asyncio.Transport):
    """Takes what is written, and nothing more."""

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        pass


async def answered(sent: bytes, size: int) -> tuple[Answer, bytes, Connection]:
    """What a connection makes of bytes that come in parts of a size, and then end."""
    connection, parts = Connection(), []
    connection.connection_made(_Transport())
    waiting = asyncio.create_task(connection.post(b"", lambda part, now: parts.append(part)))
    await asyncio.sleep(0)
    for at in range(0, len(sent), size):
        connection.data_received(sent[at : at + size])
    reusable = connection.reusable
    await asyncio.sleep(0)
    if not waiting.done():
        assert not reusable
        connection.connection_lost(None)
    return await waiting, b"".join(parts), connection


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("sent", [CHUNKED, COUNTED, UNTIL_CLOSE])
async def test_bodies_of_every_kind(sent: bytes, size: int) -> None:
    answer, body, connection = await answered(sent, size)
    assert (answer.status, answer.streams, body) == (200, True, b"hello world")
    assert connection.reusable == (sent is not UNTIL_CLOSE)


async def test_refusals_are_kept_apart() -> None:
    answer, body, connection = await answered(
        b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy", 3
    )
    assert (answer.status, bytes(answer.refusal), body, connection.reusable) == (429, b"busy", b"", False)


@pytest.mark.parametrize("sent", [b"", CHUNKED[:30], CHUNKED[:-4], COUNTED[:-1]])
async def test_a_connection_that_ends_early_is_lost(sent: bytes) -> None:
    with pytest.raises(Lost) as lost:
        await answered(sent, 1000)
    assert lost.value.answered == bool(sent)


@pytest.mark.parametrize(
    "sent",
    [b"SMTP ready\r\n\r\n", HEAD + b"Content-Length: x\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"],
)
async def test_what_is_no_http_is_told(sent: bytes) -> None:
    with pytest.raises(BadHttp):
        await answered(sent, 1000)


def record_of(api: str, *events: Any) -> Record:
    """The record of events that came a second apart."""
    record = Record(0.0, 10)
    for second, event in enumerate(events, 1):
        APIS[api].take(event if isinstance(event, bytes) else json.dumps(event).encode(), float(second), record)
    return record


def delta(content: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": content, "finish_reason": finish}], **more}


def test_chat_counts_what_brings_output() -> None:
    record = record_of(
        "openai-chat",
        delta({"role": "assistant", "content": ""}),
        delta({"reasoning_content": "hm"}),
        delta({"content": "Hi"}),
        delta({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}),
        delta({}, "stop"),
        {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 9}},
        b"[DONE]",
    )
    assert record.output_at == [2.0, 3.0, 4.0]
    assert (record.prompt_tokens, record.output_tokens, record.finish_at, record.failure) == (4, 9, 7.0, "")


def test_usage_along_the_way_is_kept_for_each_event() -> None:
    events = [delta({"content": "x"}, usage={"prompt_tokens": 4, "completion_tokens": count}) for count in (1, 4, 5)]
    assert record_of("openai-chat", *events).counts == [1, 4, 5]


def test_completions_and_tgi() -> None:
    completion = record_of("openai-completions", {"choices": [{"text": ""}]}, {"choices": [{"text": "a"}]}, b"[DONE]")
    assert (completion.output_at, completion.finish_at, completion.tokens) == ([2.0], 3.0, 1)
    token = {"id": 5, "text": "", "logprob": -0.1, "special": False}
    details = {"finish_reason": "length", "generated_tokens": 2, "seed": None, "input_length": 6}
    tgi = record_of("tgi", {"token": token}, {"token": token, "generated_text": "x", "details": details})
    assert (tgi.output_at, tgi.finish_at, tgi.output_tokens, tgi.prompt_tokens) == ([1.0, 2.0], 2.0, 2, 6)


@pytest.mark.parametrize(
    ("api", "event", "kind", "words"),
    [
        ("openai-chat", {"error": {"message": "gone", "code": 500}}, "stream error", "gone"),
        ("tgi", {"error": "gone", "error_type": "generation"}, "stream error", "gone"),
        ("openai-chat", b"<html>", "bad answer", "no chunk"),
        ("tgi", b'{"token": 3}', "bad answer", "no token"),
    ],
)
def test_errors_in_streams(api: str, event: Any, kind: str, words: str) -> None:
    record = record_of(api, event)
    assert record.failure == kind
    assert words in record.reason
