"""What the generation routes of all APIs share: a request goes in, its answer or its stream comes out."""

from __future__ import annotations

from falcon.asgi import Request, Response

from common.calls.call import Call
from common.errors import InvalidRequest
from common.protocols.dialects import error_form
from common.protocols.json_body import Model
from common.wire import WIRE_VERSION, KeptAnswer
from web import sse
from web.generation import Generation, begin_record, open_generation
from web.idempotency import HEADER, idempotency_key
from web.kept_stream import Resumable
from web.resources.resource import Resource, write_json
from web.resume import LAST_EVENT, RESUME
from web.timing_headers import answer_headers, prompt_headers


class GenerationResource(Resource):
    """Base of the resources that generate."""

    protected = True

    async def parsed(self, request: Request, model: type[Model]) -> Model:
        """The body; from here on the request is counted and logged."""
        body = await super().parsed(request, model)
        if "stream" in model.model_fields:
            request.context.stream = body.stream  # type: ignore[attr-defined]  # also for errors of what comes next
        begin_record(self.services, request)
        return body

    async def respond(self, request: Request, response: Response, call: Call) -> None:
        request.context.stream = call.stream
        if call.stream:
            await self._stream(request, response, call)
            return
        for header in (RESUME, LAST_EVENT):
            if request.get_header(header) is not None:
                raise InvalidRequest(f"`{header}` is for streams only")
        key = idempotency_key(request)
        if key is None:
            answer = await self._whole(request, call)
        else:
            async with request.context.deadline.bounding():  # it may be another call's answer that is waited for
                answer = await self.services.idempotency.once(request, key, lambda: self._whole(request, call))
        response.set_headers(answer.headers)
        write_json(response, answer.body)

    async def _open(self, request: Request, call: Call, plan: Resumable | None = None) -> Generation:
        async with request.context.deadline.bounding():
            return await open_generation(
                self.services,
                request,
                call.model,
                call.asks,
                operation=call.operation,
                sequences=call.sequences,
                stream=call.stream,
                plan=plan,
            )

    async def _whole(self, request: Request, call: Call) -> KeptAnswer:
        generation = await self._open(request, call)
        fold = call.fold(generation.requests, generation.origin)
        body = fold.body(await generation.all())
        headers = await self._prompt_headers(call, call.ignored)
        headers |= answer_headers(generation.record, fold.generated_tokens)
        return KeptAnswer(WIRE_VERSION, headers, body)

    async def _stream(self, request: Request, response: Response, call: Call) -> None:
        ignored = [*call.ignored, HEADER] if request.get_header(HEADER) is not None else call.ignored
        plan = await self.services.resumption.plan(request)
        generation = await self._open(request, call, plan)
        fold = call.fold(generation.requests, generation.origin)
        generation.replay(fold.stream_events, last=call.last)
        await generation.begun()
        response.set_headers({**await self._prompt_headers(call, ignored), **sse.HEADERS})
        response.content_type = sse.CONTENT_TYPE
        response.stream = generation.chunks(
            fold.stream_events, error_form(request.path, self.services.settings), last=call.last
        )

    async def _prompt_headers(self, call: Call, ignored: list[str]) -> dict[str, str]:
        return await prompt_headers(self.services, call.model.id, call.characters, ignored)
