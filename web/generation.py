"""One admitted generation request, from what is asked to its tokens; the same for every protocol.

The order is TGI's: rules of combination, permit, rules of value and tokenizing, queue. Whatever is taken on the way hangs
on the request's lifetime and is let go when that ends, in any phase.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
import structlog
from falcon.asgi import Request

from common.calls.call import Origin
from common.client.merged_stream import MergedStream
from common.client.token_stream import TokenStream
from common.errors import InvalidRequest, NotResumable, TgqError
from common.protocols.dialects import ErrorForm
from common.served_models import ServedModel
from common.tracing.call_span import CallSpan, Operation
from common.validation import Ask, ValidRequest
from common.wire import Job, Tokens
from web import sse
from web.deadline import Deadline
from web.disconnect import RequestLifetime
from web.entry import Entry, enter
from web.errors import public_error
from web.kept_stream import KeptStream, Resumable
from web.request_record import RequestRecord
from web.resume import RESUME
from web.running import RunningRequest
from web.server_spans import server_span, trace_context
from web.services import Services
from web.silence import Silence

log = structlog.get_logger(__name__)


class Generation:
    """A request that is in the queue or further."""

    def __init__(
        self,
        requests: list[ValidRequest],
        stream: TokenStream | MergedStream | KeptStream,
        entry: Entry,
        record: RequestRecord,
        keepalive: float,
        origin: Origin,
        plan: Resumable | None,
    ) -> None:
        """
        Args:
            requests: one for each prompt.
            keepalive: seconds of silence after which a stream gets a comment; 0 for never.
            plan: of a stream that may be resumed.
        """
        self.requests = requests
        self.record = record
        self.origin = origin
        self._plan = plan
        self._told = 0
        """Id of the last event that was sent."""
        self._untold: list[bytes] = []
        self._stream = stream
        self._entry = entry
        self._keepalive = keepalive or None
        self._begun = True

    async def all(self) -> list[Tokens]:
        """All tokens, once the sequence has ended.

        Raises:
            TgqError: it did not end by itself.
        """
        events = []
        async for tokens in self._stream:
            self._received(tokens)
            events.append(tokens)
        return events

    def replay(self, encode: Callable[[Tokens], list[bytes]], *, last: bytes = b"") -> None:
        """Make the events of a resumed stream again, up to where it goes on; see `chunks`.

        Raises:
            NotResumable: there were not as many as the caller says it has.
        """
        if self._plan is None:
            return
        events = [event for tokens in self._plan.tokens for event in _events(tokens, encode, last)]
        self._told = self._plan.events
        if self._told > len(events):
            raise NotResumable
        self._untold = events[self._told :]
        if self._plan.finished:
            self.record.replayed()

    async def begun(self) -> None:
        """Wait until there is something to send: tokens, a comment's time, or the error that is the whole answer.

        Raises:
            TgqError: the request failed before its first token.
        """
        if self._untold:
            return
        self._begun = await self._stream.ready(self._keepalive)
        if self._stream.error is not None and self._stream.timings.first_token is None:
            raise self._stream.error

    async def chunks(
        self, encode: Callable[[Tokens], list[bytes]], error_form: ErrorForm, *, last: bytes = b""
    ) -> AsyncIterator[bytes]:
        """The stream's bytes: all events that are there as one chunk, comments in silence, an error as the last event.

        Args:
            encode: turns tokens into the JSON of zero or more events.
            error_form: makes the JSON of an error.
            last: the data of an event after the last token's; none if empty.
        """
        try:
            if self._untold:
                yield self._frames(self._untold)
            if not self._begun:
                yield sse.COMMENT
            with Silence(self._keepalive) as silence:
                while True:
                    silence.begin()
                    try:
                        tokens = await anext(self._stream, None)
                    except asyncio.CancelledError:
                        if not silence.interrupted():
                            raise
                        yield sse.COMMENT
                        continue
                    silence.end()
                    if tokens is None:
                        return
                    self._received(tokens)
                    if chunk := self._frames(_events(tokens, encode, last)):
                        yield chunk
        except Exception as error:  # the status is out: whatever happens is told in the stream, and never breaks it off
            told = public_error(error)
            if type(told) is TgqError:
                log.error("unexpected error in a stream", exc_info=error)
            self.record.failed(told)
            self._entry.release()
            yield sse.frame(error_form(told), self._told)

    def _frames(self, events: list[bytes]) -> bytes:
        first = self._told + 1
        self._told += len(events)
        return sse.frames(events, first)

    def _received(self, tokens: Tokens) -> None:
        self.record.received(tokens)
        if tokens.ends:
            # Not when the answer is sent: a client that reads slowly must not keep others out.
            self._entry.release()


async def open_generation(
    services: Services,
    request: Request,
    model: ServedModel,
    asks: Callable[[], Awaitable[Sequence[Ask]]],
    *,
    operation: Operation,
    sequences: int,
    stream: bool,
    plan: Resumable | None = None,
) -> Generation:
    """Admit, validate and queue a request.

    Args:
        model: whose workers it is for.
        asks: makes what is asked for, one for each prompt, once the request is admitted; may raise `InvalidRequest`.
        sequences: how many those will generate, all prompts and children together.
        operation, stream: for the records.
        plan: of a stream that may be resumed.

    Raises:
        InvalidRequest: the request breaks a rule.
        Overloaded: too many requests are under way, of all or of the key's, or the queue is full.
        ServiceUnavailable: Redis is away.
        DeadlineExceeded: its time was over before it was queued.
    """
    lifetime = RequestLifetime.of(request.scope)
    record: RequestRecord = request.context.record
    trace = _trace(services, request, model, operation, stream=stream, sequences=sequences)
    outliving = None if plan is None else services.resumption.outlive(lifetime, plan)
    running = RunningRequest("" if plan is None else plan.owner)
    lifetime.stack.callback(services.running.enter(request, running))
    entry = await enter(services, request, model.id, sequences, resumed=plan is not None and plan.stored is not None)
    lifetime.stack.callback(entry.release)
    record.entered("validation")
    requests, limit_field = await _validated(services, model, asks, plan, record)
    await entry.reserve(requests, limit_field)
    record.entered("dispatch")
    jobs = [_job(services, request, model, valid, trace, plan) for valid in requests]
    deadline: Deadline = request.context.deadline
    streams = [services.client.generate(job, deadline.remaining()) for job in jobs]
    tokens: TokenStream | MergedStream | KeptStream = streams[0] if len(streams) == 1 else MergedStream(streams)
    origin = Origin.new() if plan is None else plan.origin
    if plan is not None:
        tokens = await services.resumption.keep(streams[0], plan, origin, lifetime.stack)
    running.queue(tokens)
    lifetime.stack.callback(tokens.close)
    await tokens.__aenter__()
    if plan is None or not plan.finished:
        record.dispatched(tokens.timings)
    generation = Generation(requests, tokens, entry, record, services.settings.keepalive_seconds, origin, plan)
    if outliving is not None:
        outliving.generation = generation
    return generation


def _trace(
    services: Services, request: Request, model: ServedModel, operation: Operation, *, stream: bool, sequences: int
) -> dict[str, str]:
    """Tell the request's record what it is; the trace context for its jobs."""
    record: RequestRecord = request.context.record
    if stream:
        record.streams()
    if services.tracing is None:
        return trace_context(request.scope)
    parent = server_span(request.scope)
    record.span = CallSpan(services.tracing, parent, operation, model.id, stream=stream, sequences=sequences)
    return record.span.headers


async def _validated(
    services: Services,
    model: ServedModel,
    asks: Callable[[], Awaitable[Sequence[Ask]]],
    plan: Resumable | None,
    record: RequestRecord,
) -> tuple[list[ValidRequest], str]:
    """The requests, and what the caller's dialect calls `max_new_tokens`.

    Raises:
        InvalidRequest: one breaks a rule, or several are to be resumed.
    """
    requests = []
    limit_field = "max_new_tokens"
    for ask in await asks():
        limit_field = ask.names.get("max_new_tokens", "max_new_tokens")
        known_adapters = None if ask.adapter is None else await services.workers.adapters(model.id)
        valid = _as_before(await model.validator.validate(ask, known_adapters), plan)
        record.validated(valid)
        requests.append(valid)
    if plan is not None and len(requests) > 1:
        raise InvalidRequest(f"`{RESUME}` wants one prompt, given {len(requests)}")
    return requests, limit_field


def _job(
    services: Services,
    request: Request,
    model: ServedModel,
    valid: ValidRequest,
    trace: dict[str, str],
    plan: Resumable | None,
) -> Job:
    job = services.client.new_job(
        valid.prompt_ids,
        valid.parameters,
        model=model.id,
        adapter=valid.adapter,
        tenant=request.context.tenant,
        weight=request.context.key.weight if request.context.key is not None else 1.0,
        trace=trace,
    )
    if plan is None or plan.stored is None:
        return job
    return msgspec.structs.replace(job, id=plan.stored.job, attempt=plan.attempt)


def begin_record(services: Services, request: Request) -> None:
    """From here on the request is counted and, once it is over, logged; its time runs.

    Raises:
        InvalidRequest: `x-request-timeout` is no time.
    """
    lifetime = RequestLifetime.of(request.scope)
    span = server_span(request.scope)
    record = request.context.record = RequestRecord(
        services.metrics,
        lifetime,
        request_id=request.context.request_id,
        route=request.uri_template or "",
        tenant=request.context.tenant,
        trace_id="" if span is None else span.trace_id,
    )
    lifetime.stack.enter_context(record)
    request.context.deadline = Deadline.of(request, services.settings)


def _events(tokens: Tokens, encode: Callable[[Tokens], list[bytes]], last: bytes) -> list[bytes]:
    events = encode(tokens)
    return [*events, last] if last and tokens.ends else events


def _as_before(valid: ValidRequest, plan: Resumable | None) -> ValidRequest:
    """A resumed request has the seed that was drawn for it."""
    if plan is None or plan.stored is None:
        return valid
    return msgspec.structs.replace(valid, parameters=msgspec.structs.replace(valid.parameters, seed=plan.stored.seed))
