"""What spans say of requests and of their messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from common.calls.running import run_call
from common.celery_message import job_of
from common.client.failover import SentMessage
from common.errors import InvalidRequest, Overloaded
from common.grammar import Grammar
from common.parameters import GenerationParameters
from common.tracing.call_span import CallSpan, request_attributes
from common.tracing.tracing import Tracing
from common.validation import ValidRequest
from common.wire import Finish, Job, Token, Tokens

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"}
PARAMETERS = GenerationParameters(max_new_tokens=9, seed=5, stop=["private"])


def sent(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


def job(**fields: Any) -> Job:
    return Job(id="j", model="m", prompt_ids=[1, 2, 3], parameters=PARAMETERS, submitted_at=0.0, **fields)


def tokens(count: int, *, child: int = 0, finish: Finish | None = None, unfinished: int = 0) -> Tokens:
    return Tokens(0, [Token(1, "private", -1.0, False)] * count, finish, child, unfinished)


def test_a_call(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    span = CallSpan(tracing, CONTEXT, "chat", "m", stream=True, sequences=2)
    span.validated(ValidRequest([1, 2, 3], PARAMETERS, "adapter"))
    span.received(tokens(2, unfinished=1))
    span.received(tokens(1, child=1, finish=Finish("length", 1, 0.5), unfinished=1))
    span.received(tokens(1, finish=Finish("stop_sequence", 3, 0.5, "private")))
    span.end("finished", None)
    call, relay = sent(exporter)["chat m"], sent(exporter)["relay"]
    told = dict(attributes(call))
    assert told.pop("gen_ai.response.time_to_first_chunk") > 0
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tgq",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.output.type": "text",
        "gen_ai.response.model": "adapter",
        "gen_ai.response.finish_reasons": ("stop", "length"),
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 4,
        "tgq.cause": "finished",
    }
    assert call.status.is_unset
    assert relay.parent == call.context
    assert relay.end_time == call.end_time
    assert call.context is not None
    assert f"{call.context.trace_id:032x}" == TRACE
    assert span.headers == {"traceparent": f"00-{TRACE}-{call.context.span_id:016x}-01", "tracestate": "vendor=1"}


def test_a_call_that_fails_before_its_first_token(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    span = CallSpan(tracing, None, "text_completion", "m", stream=False, sequences=1)
    span.end("overloaded", "overloaded")
    (call,) = exporter.get_finished_spans()
    assert attributes(call)["error.type"] == "overloaded"
    assert not call.status.is_ok
    assert call.parent is None
    assert not call.events
    assert "gen_ai.usage.output_tokens" not in attributes(call)


async def test_a_call_without_http_that_is_refused(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    async def asks() -> None:
        raise InvalidRequest("private")

    call: Any = SimpleNamespace(operation="chat", model=SimpleNamespace(id="m"), sequences=1, asks=asks)
    client: Any = SimpleNamespace(tracing=tracing)
    with pytest.raises(InvalidRequest):
        await run_call(call, client, client, 1.0)
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.parent) == ("chat m", None)
    assert attributes(span)["error.type"] == attributes(span)["tgq.cause"] == "validation"
    assert "private" not in span.to_json()


def test_what_a_request_asks_for() -> None:
    sampled = msgspec.structs.replace(
        PARAMETERS, sample=True, temperature=0.5, top_k=4, top_p=0.9, presence_penalty=1.0, openai_frequency_penalty=0.5
    )
    told = request_attributes(sampled)
    assert {name.removeprefix("gen_ai.request."): value for name, value in told.items()} == {
        "max_tokens": 9,
        "frequency_penalty": 0.5,
        "presence_penalty": 1.0,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "seed": 5,
        "gen_ai.output.type": "text",
    }
    formed = msgspec.structs.replace(PARAMETERS, grammar=Grammar("json", '{"title": "private"}'))
    assert request_attributes(formed)["gen_ai.output.type"] == "json"
    assert "private" not in json.dumps(dict(request_attributes(formed)))


@pytest.mark.parametrize("seed", [2**63, 2**64 - 1])
def test_a_seed_that_does_not_fit_is_not_told(seed: int, tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    parameters = msgspec.structs.replace(PARAMETERS, sample=True, seed=seed)
    assert request_attributes(parameters)["gen_ai.request.seed"] is None


def test_each_attempt_is_a_child_of_the_same_span(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    first = SentMessage.of(job(trace=CONTEXT), "q", tracing)
    with first.sending():
        pass
    second = SentMessage.of(job(trace=CONTEXT, attempt=2, generated_ids=[7]), "q", tracing, "worker_lost")
    assert second.span is not None
    second.span.end()
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["enqueue q"] * 2
    for span, message in zip(spans, (first, second), strict=True):
        assert span.parent is not None
        assert span.context is not None
        assert f"{span.parent.span_id:016x}" == SPAN
        carried = job_of(json.loads(json.loads(message.message)["body"])[0])
        assert carried.trace == {
            "traceparent": f"00-{TRACE}-{span.context.span_id:016x}-01",
            "tracestate": "vendor=1",
        }
        assert carried.sent_at is not None
        assert attributes(span)["messaging.message.id"] == message.tag
    assert attributes(spans[1])["tgq.resend.cause"] == "worker_lost"
    assert attributes(spans[1])["tgq.generated_before"] == 1
    assert "tgq.resend.cause" not in attributes(spans[0])


def test_a_sending_that_fails(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    with pytest.raises(Overloaded), SentMessage.of(job(), "q", tracing).sending():
        raise Overloaded("private")
    (span,) = exporter.get_finished_spans()
    assert attributes(span)["error.type"] == "overloaded"
    assert "private" not in span.to_json()


def test_without_tracing_a_message_is_what_it_was() -> None:
    message = SentMessage.of(job(trace=CONTEXT), "q")
    assert message.span is None
    carried = job_of(json.loads(json.loads(message.message)["body"])[0])
    assert carried == job(trace=CONTEXT)
    assert b"sent_at" not in message.message
