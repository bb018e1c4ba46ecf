"""One admitted generation request, from its parsed body to its tokens; the same for every protocol.

The order is TGI's: rules of combination, permit, rules of value and tokenizing, queue. Whatever is taken on the way hangs
on the request's lifetime and is let go when that ends, in any phase.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import structlog
from falcon.asgi import Request

from common.admission import Permit
from common.client.token_stream import TokenStream
from common.errors import TgqError
from common.protocols.tgi_request import GenerateRequest
from common.validation import ValidRequest
from common.wire import Tokens
from web import sse
from web.disconnect import RequestLifetime
from web.errors import error_body, public_error
from web.request_record import RequestRecord
from web.services import Services
from web.silence import Silence

log = structlog.get_logger(__name__)

_TRACE_HEADERS = ("traceparent", "tracestate")
_LONGEST_TRACE_HEADER = 512


class Generation:
    """A request that is in the queue or further."""

    def __init__(
        self, valid: ValidRequest, stream: TokenStream, permit: Permit, record: RequestRecord, keepalive: float
    ) -> None:
        """
        Args:
            keepalive: seconds of silence after which a stream gets a comment; 0 for never.
        """
        self.valid = valid
        self.record = record
        self._stream = stream
        self._permit = permit
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

    async def begun(self) -> None:
        """Wait until there is something to send: tokens, a comment's time, or the error that is the whole answer.

        Raises:
            TgqError: the request failed before its first token.
        """
        self._begun = await self._stream.ready(self._keepalive)
        if self._stream.error is not None and self._stream.timings.first_token is None:
            raise self._stream.error

    async def chunks(self, encode: Callable[[Tokens], list[bytes]]) -> AsyncIterator[bytes]:
        """The stream's bytes: all events that are there as one chunk, comments in silence, an error as the last event.

        Args:
            encode: turns tokens into the JSON of zero or more events.
        """
        try:
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
                    yield sse.frames(encode(tokens))
        except Exception as error:  # the status is out: whatever happens is told in the stream, and never breaks it off
            told = public_error(error)
            if type(told) is TgqError:
                log.error("unexpected error in a stream", exc_info=error)
            self.record.failed(told)
            self._permit.release()
            yield sse.frame(error_body(told))

    def _received(self, tokens: Tokens) -> None:
        self.record.received(tokens)
        if tokens.ends:
            # Not when the answer is sent: a client that reads slowly must not keep others out.
            self._permit.release()


async def open_generation(services: Services, request: Request, body: GenerateRequest, *, stream: bool) -> Generation:
    """Admit, validate and queue a request.

    Raises:
        InvalidRequest: the request breaks a rule.
        Overloaded: too many requests are under way, or the queue is full.
        ServiceUnavailable: Redis is away.
    """
    lifetime = RequestLifetime.of(request.scope)
    record = request.context.record = RequestRecord(
        services.metrics,
        lifetime,
        request_id=request.context.request_id,
        route=request.uri_template or "",
        stream=stream,
    )
    lifetime.stack.enter_context(record)
    services.validator.check_combination(body.parameters, stream=stream)
    permit = await services.admission.acquire(max(body.parameters.best_of or 1, 1))
    lifetime.stack.callback(permit.release)
    record.entered("validation")
    known_adapters = None if body.parameters.adapter_id is None else await services.workers.adapters()
    valid = await services.validator.validate(body, known_adapters)
    record.validated(valid)
    record.entered("dispatch")
    job = services.client.new_job(valid.prompt_ids, valid.parameters, adapter=valid.adapter, trace=_trace(request))
    tokens = services.client.generate(job)
    lifetime.stack.callback(tokens.close)
    await tokens.__aenter__()
    record.dispatched(tokens.timings)
    return Generation(valid, tokens, permit, record, services.settings.keepalive_seconds)


def _trace(request: Request) -> dict[str, str]:
    headers = {name: request.get_header(name) for name in _TRACE_HEADERS}
    return {name: value for name, value in headers.items() if value and len(value) <= _LONGEST_TRACE_HEADER}
