"""Traces, from a client's `traceparent` to the last token, as a collector gets them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from common.wire import WorkerRecord
from ops.local_service import LocalService
from tests.acceptance.batches import BatchClient, saying
from tests.acceptance.clients import Stream, body, generate, script
from tests.acceptance.observation import Observer, sends_traces, until
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan

MARK = "Zebrafink"
"""In every prompt and answer here; never in a span."""
SETTINGS = {
    "MODEL_ID": "scripted",
    "TGQ_HEARTBEAT_SECONDS": "0.1",
    "TGQ_WORKER_DEAD_AFTER": "2",
    "OTEL_BSP_SCHEDULE_DELAY": "100",
    "OTEL_BSP_MAX_QUEUE_SIZE": "64",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "32",
}
QUEUE = "tgq:queue:scripted:interactive"
STAGES = ["queued", "prefill", "decode"]


@pytest.fixture(scope="module")
def collector() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def service(collector: OtlpReceiver) -> Iterator[LocalService]:
    settings = {**SETTINGS, "OTLP_ENDPOINT": collector.url}
    with LocalService(settings, workers=2, batch_workers=1) as running:
        yield running


class Caller:
    """A client with a trace of its own."""

    def __init__(self, flags: str = "01") -> None:
        self.trace, self.span = secrets.token_hex(16), secrets.token_hex(8)
        self.headers = {"traceparent": f"00-{self.trace}-{self.span}-{flags}", "tracestate": "vendor=1"}


def named(spans: list[ReceivedSpan], name: str) -> list[ReceivedSpan]:
    return [span for span in spans if span.name == name]


def finished(spans: list[ReceivedSpan]) -> bool:
    """Whether the job ended, and the request."""
    ended = {span.attributes.get("tgq.outcome") for span in spans if span.kind == "consumer"}
    return "finished" in ended and any(span.kind == "server" for span in spans)


def parents(spans: list[ReceivedSpan]) -> dict[str, str]:
    """Span by span, by their names."""
    names = {span.id: span.name for span in spans}
    return {span.name: names.get(span.parent, span.parent) for span in spans}


async def test_one_trace_from_the_client_to_the_last_token(
    service: LocalService, client: httpx.AsyncClient, collector: OtlpReceiver
) -> None:
    caller = Caller()
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": script(f"{MARK} sings.", first_ms=600, step_ms=100)}],
        "stream": True,
        "max_tokens": 50,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "stop": [f"never {MARK}"],
    }
    response = await client.post("/v1/chat/completions", json=asked, headers=caller.headers)
    assert response.status_code == 200
    spans = collector.trace(caller.trace, finished)

    server, chat, enqueue, process = (
        "POST /v1/chat/completions",
        "chat scripted",
        f"enqueue {QUEUE}",
        f"process {QUEUE}",
    )
    assert parents(spans) == {
        server: caller.span,
        chat: server,
        "relay": chat,
        enqueue: chat,
        process: enqueue,
        **dict.fromkeys(STAGES, process),
    }
    by_name = {span.name: span for span in spans}
    assert {name: by_name[name].kind for name in (server, chat, enqueue, process)} == {
        server: "server",
        chat: "internal",
        enqueue: "producer",
        process: "consumer",
    }
    assert {by_name[name].service for name in (server, chat, enqueue, "relay")} == {"tgq-web"}
    assert {by_name[name].service for name in (process, *STAGES)} == {"tgq-worker"}
    told = by_name[server].attributes
    assert told["http.route"] == "/v1/chat/completions"
    assert told["http.response.status_code"] == 200
    told = by_name[chat].attributes
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.request.seed"] == 7
    assert told["gen_ai.response.finish_reasons"] == ["stop"]
    assert told["gen_ai.usage.output_tokens"] == by_name[process].attributes["gen_ai.usage.output_tokens"]
    assert told["gen_ai.response.time_to_first_chunk"] >= 0.6
    assert told["gen_ai.usage.output_tokens"] >= 3

    stages = [by_name[name] for name in STAGES]
    assert [stage.end for stage in stages[:-1]] == [stage.begin for stage in stages[1:]]
    prefill, decode = (stage.end - stage.begin for stage in stages[1:])
    tokens = told["gen_ai.usage.output_tokens"]
    assert prefill + decode >= (600 + (tokens - 1) * 100) * 1e6 * 0.99  # as the engine measured it
    # Where one ends and the other begins is told by when word of the first token came.
    assert prefill >= 150e6
    assert decode >= 50e6
    assert by_name[chat].begin <= by_name[enqueue].begin <= stages[0].begin
    assert by_name["relay"].begin >= stages[2].begin
    assert not any(span.failed for span in spans)
    await until(lambda: [line for line in _log(service) if caller.trace in line], 15, "the request's line in the log")
    logged = json.loads(next(line for line in _log(service) if caller.trace in line))
    assert logged["trace_id"] == caller.trace
    assert logged["event"] == "request"


async def test_a_failover_is_a_second_attempt_in_the_same_trace(
    service: LocalService, client: httpx.AsyncClient, collector: OtlpReceiver, seen: Observer
) -> None:
    caller, text = Caller(), f"{MARK} sings on and on. "
    asked = body(script(text, repeat=8, step_ms=50))

    def holders() -> list[WorkerRecord]:
        return [record for record in seen.workers() if record.running]

    await seen.until_idle(20)
    async with client.stream("POST", "/generate_stream", json=asked, headers=caller.headers) as response:
        stream = Stream(response)
        await stream.hear(3)
        await until(holders, 20, "its worker")
        (holder,) = holders()
        next(part for part in service.workers if part.pid == holder.pid).kill()
        while await stream.event():
            pass
    assert stream.final == text * 8

    spans = collector.trace(caller.trace, finished)
    (chat,) = named(spans, "text_completion scripted")
    first, second = named(spans, f"enqueue {QUEUE}")
    assert first.parent == second.parent == chat.id
    assert [span.attributes["tgq.attempt"] for span in (first, second)] == [1, 2]
    assert second.attributes["tgq.resend.cause"] == "worker_lost"
    (process,) = named(spans, f"process {QUEUE}")
    assert process.parent == second.id
    assert process.attributes["tgq.attempt"] == 2
    assert process.attributes["tgq.generated_before"] >= 3
    (other,) = [record.id for record in seen.workers() if record.id != holder.id]
    assert process.resource["service.instance.id"] == other
    assert [named(spans, stage)[0].parent for stage in STAGES] == [process.id] * 3


async def test_a_line_of_a_batch_has_a_trace_of_its_own(service: LocalService, collector: OtlpReceiver) -> None:
    with BatchClient(service.url) as batches:
        batch = batches.submit([saying("line 1", f"{MARK} writes.")])
        batches.until(batch, seconds=60)

    def batch_jobs() -> list[ReceivedSpan]:
        return named(list(collector.spans), "process tgq:queue:scripted:batch")

    await until(batch_jobs, 15, "the line's job")
    spans = collector.trace(batch_jobs()[0].trace, lambda found: named(found, "chat scripted"))
    (chat,) = named(spans, "chat scripted")
    assert chat.parent == ""
    assert chat.service == "tgq-batch-worker"
    assert parents(spans)["enqueue tgq:queue:scripted:batch"] == chat.name


async def test_what_is_no_trace_context_begins_a_new_trace(
    service: LocalService, client: httpx.AsyncClient, collector: OtlpReceiver
) -> None:
    for given in ("00-zz-1-01", f"00-{'0' * 32}-{'1' * 16}-01", "x" * 3000):
        before = {span.id for span in named(list(collector.spans), "POST /generate")}
        response = await client.post(
            "/generate", json=body(script(f"{MARK}.")), headers={"traceparent": given, "tracestate": "vendor=1"}
        )
        assert response.status_code == 200

        def new(before: set[str] = before) -> list[ReceivedSpan]:
            return [span for span in named(list(collector.spans), "POST /generate") if span.id not in before]

        await until(new, 15, "a server span")
        (server,) = new()
        assert server.parent == ""
        assert len(collector.trace(server.trace, finished)) == 8


async def test_unsampled_traces_and_probes_are_not_sent(
    service: LocalService, client: httpx.AsyncClient, collector: OtlpReceiver
) -> None:
    unsampled, sampled = Caller(flags="00"), Caller()
    assert (await client.get("/health")).status_code == 200
    for caller in (unsampled, sampled):
        response = await client.post("/generate", json=body(script(f"{MARK}.")), headers=caller.headers)
        assert response.status_code == 200
    collector.trace(sampled.trace, finished)
    sent = list(collector.spans)
    assert not [span for span in sent if span.trace == unsampled.trace]
    assert not [span for span in sent if "health" in str(span.attributes.get("url.path"))]


async def test_a_refused_request_is_an_error_of_the_call_alone(
    service: LocalService, client: httpx.AsyncClient, collector: OtlpReceiver
) -> None:
    caller = Caller()
    response = await client.post(
        "/generate", json={"inputs": MARK, "parameters": {"temperature": -1}}, headers=caller.headers
    )
    assert response.status_code == 422
    spans = collector.trace(caller.trace, lambda found: named(found, "POST /generate"))
    by_kind = {span.kind: span for span in spans}
    assert by_kind["server"].attributes["http.response.status_code"] == 422
    assert not by_kind["server"].failed
    assert by_kind["internal"].failed
    assert by_kind["internal"].attributes["error.type"] == "validation"


async def test_the_engine_knows_nothing_of_it(service: LocalService, seen: Observer) -> None:
    for record in seen.workers():
        assert record.engine_pid is not None
        assert sends_traces(record.pid)
        assert not sends_traces(record.engine_pid)


def test_no_words_of_anybody_are_sent(collector: OtlpReceiver) -> None:
    """Of all that the tests above have had sent."""
    assert len(collector.spans) > 30
    assert not [sent for sent in collector.bodies if MARK.encode() in sent]


async def test_a_dead_collector_disturbs_nobody(
    service: LocalService, client: httpx.AsyncClient, collector: OtlpReceiver
) -> None:
    """The last one: nobody hears of the service any more."""
    collector.die()
    for number in range(40):
        assert await generate(client, script(f"{MARK} {number}")) == f"{MARK} {number}"
    parts = [*service.web, *(worker for worker in service.workers if worker.alive)]
    for part in parts:
        part.terminate()
    assert [part.wait(40) for part in parts] == [0] * len(parts)
    logs = [part.log.read_text() for part in parts]
    complaints = [line for log in logs for line in log.splitlines() if '"logger": "opentelemetry' in line]
    assert 1 <= len(complaints) <= 15 * len(parts)
    assert not [log for log in logs if MARK in log]


def _log(service: LocalService) -> list[str]:
    return [line for part in service.web for line in part.log.read_text().splitlines()]
