"""TGI's own generation routes: `/`, `/generate`, `/generate_stream`."""

from __future__ import annotations

from collections.abc import Sequence

from falcon.asgi import Request, Response

from common.calls.call import Origin
from common.protocols import tgi_rules
from common.protocols.tgi_answer import AnswerFold
from common.protocols.tgi_request import CompatGenerateRequest, GenerateRequest
from common.served_models import ServedModel
from common.settings import Settings
from common.tracing.call_span import Operation
from common.validation import Ask, ValidRequest
from web.resources.generation import GenerationResource


class GenerateCall:
    """See `common.calls.call.Call`."""

    operation: Operation = "text_completion"
    last = b""

    def __init__(
        self, body: GenerateRequest, model: ServedModel, settings: Settings, *, stream: bool, in_array: bool = False
    ) -> None:
        """
        Raises:
            InvalidRequest: the parameters do not go together.
        """
        tgi_rules.check_combination(body.parameters, settings, stream=stream)
        self.model = model
        self.stream = stream
        self.sequences = max(body.parameters.best_of or 1, 1)
        self.characters = len(body.inputs)
        self.ignored = body.ignored
        self._body = body
        self._settings = settings
        self._in_array = in_array

    async def asks(self) -> Sequence[Ask]:
        return [tgi_rules.ask(self._body, self._settings, self.model.limits)]

    def fold(self, requests: Sequence[ValidRequest], origin: Origin) -> AnswerFold:
        return AnswerFold(tgi_rules.answer(self._body, requests[0]), in_array=self._in_array)


class Generate(GenerationResource):
    async def on_post(self, request: Request, response: Response) -> None:
        body = await self.parsed(request, GenerateRequest)
        await self.respond(request, response, self.call(body, stream=False))

    def call(self, body: GenerateRequest, *, stream: bool, in_array: bool = False) -> GenerateCall:
        services = self.services
        return GenerateCall(body, services.models.default, services.settings, stream=stream, in_array=in_array)


class GenerateStream(Generate):
    streams = True

    async def on_post(self, request: Request, response: Response) -> None:
        body = await self.parsed(request, GenerateRequest)
        await self.respond(request, response, self.call(body, stream=True))


class Root(Generate):
    """`POST /`, which most clients use: an array of one answer, or a stream. `GET /` is the health check."""

    async def on_post(self, request: Request, response: Response) -> None:
        body = await self.parsed(request, CompatGenerateRequest)
        await self.respond(request, response, self.call(body, stream=body.stream, in_array=not body.stream))

    async def on_get(self, request: Request, response: Response) -> None:
        await self.services.health.check()

    on_head = on_get
