"""TGI's own generation routes: `/`, `/generate`, `/generate_stream`."""

from __future__ import annotations

from falcon.asgi import Request, Response

from common.protocols.json_body import parse_body
from common.protocols.tgi_answer import AnswerFold, encode
from common.protocols.tgi_request import CompatGenerateRequest, GenerateRequest
from common.wire import Tokens
from web import sse
from web.generation import open_generation
from web.resources.resource import Resource, write_json
from web.timing_headers import answer_headers, prompt_headers


class GenerationResource(Resource):
    """Answers a parsed request as a whole or as a stream."""

    protected = True

    async def answer(self, request: Request, response: Response, body: GenerateRequest) -> bytes:
        generation = await open_generation(self.services, request, body, stream=False)
        events = await generation.all()
        fold = AnswerFold(generation.valid.answer)
        answer = fold.body(events)
        response.set_headers(await prompt_headers(self.services, body))
        response.set_headers(answer_headers(generation.record, fold.generated_tokens))
        return encode(answer)

    async def stream(self, request: Request, response: Response, body: GenerateRequest) -> None:
        request.context.stream = True
        generation = await open_generation(self.services, request, body, stream=True)
        fold = AnswerFold(generation.valid.answer)

        def encode_events(tokens: Tokens) -> list[bytes]:
            return [encode(event) for event in fold.stream_events(tokens)]

        await generation.begun()
        response.set_headers({**await prompt_headers(self.services, body), **sse.HEADERS})
        response.content_type = sse.CONTENT_TYPE
        response.stream = generation.chunks(encode_events)


class Generate(GenerationResource):
    async def on_post(self, request: Request, response: Response) -> None:
        body = parse_body(GenerateRequest, await self.read(request))
        write_json(response, await self.answer(request, response, body))


class GenerateStream(GenerationResource):
    streams = True

    async def on_post(self, request: Request, response: Response) -> None:
        body = parse_body(GenerateRequest, await self.read(request))
        await self.stream(request, response, body)


class Root(GenerationResource):
    """`POST /`, which most clients use: an array of one answer, or a stream. `GET /` is the health check."""

    async def on_post(self, request: Request, response: Response) -> None:
        body = parse_body(CompatGenerateRequest, await self.read(request))
        if body.stream:
            await self.stream(request, response, body)
        else:
            write_json(response, b"[" + await self.answer(request, response, body) + b"]")

    async def on_get(self, request: Request, response: Response) -> None:
        await self.services.health.check()

    on_head = on_get
