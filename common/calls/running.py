"""Has a call answered by the workers, whole."""

from __future__ import annotations

from typing import TypedDict, Unpack

from msgspec import Struct

from common.calls.call import Call, Origin
from common.client.generation import GenerationClient
from common.client.merged_stream import MergedStream
from common.client.token_stream import TokenStream
from common.errors import error_kind
from common.live_workers import LiveWorkers
from common.tracing.call_span import CallSpan
from common.wire import JobClass


class JobTerms(TypedDict, total=False):
    """What a call's jobs have in common; see `GenerationClient.new_job`."""

    job_class: JobClass
    deadline: float | None
    tenant: str
    weight: float


class Answered(Struct, frozen=True):
    body: bytes
    """JSON, as the call's route answers."""
    prompt_tokens: int
    generated_tokens: int


async def run_call(
    call: Call, client: GenerationClient, workers: LiveWorkers, seconds: float, **terms: Unpack[JobTerms]
) -> Answered:
    """Validate, enqueue, wait, fold.

    Args:
        seconds: in which all must be done.

    Raises:
        TgqError: as a live route would answer it.
    """
    tracing = client.tracing
    if tracing is None:
        return await _run(call, client, workers, seconds, None, terms)
    span = CallSpan(tracing, None, call.operation, call.model.id, stream=False, sequences=call.sequences)
    try:
        answered = await _run(call, client, workers, seconds, span, terms)
    except BaseException as error:
        span.end(error_kind(error), error_kind(error))
        raise
    span.end("finished", None)
    return answered


async def _run(
    call: Call, client: GenerationClient, workers: LiveWorkers, seconds: float, span: CallSpan | None, terms: JobTerms
) -> Answered:
    origin, model = Origin.new(), call.model
    trace = None if span is None else span.headers
    requests, streams = [], []
    for ask in await call.asks():
        known_adapters = None if ask.adapter is None else await workers.adapters(model.id)
        valid = await model.validator.validate(ask, known_adapters)
        requests.append(valid)
        if span is not None:
            span.validated(valid)
        job = client.new_job(
            valid.prompt_ids, valid.parameters, model=model.id, adapter=valid.adapter, trace=trace, **terms
        )
        streams.append(client.generate(job, seconds))
    merged: TokenStream | MergedStream = streams[0] if len(streams) == 1 else MergedStream(streams)
    async with merged as tokens:
        events = []
        async for event in tokens:
            events.append(event)
            if span is not None:
                span.received(event)
    fold = call.fold(requests, origin)
    body = fold.body(events)
    return Answered(body, sum(len(request.prompt_ids) for request in requests), fold.generated_tokens)
