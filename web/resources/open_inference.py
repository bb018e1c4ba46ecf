"""The Open Inference Protocol's routes, `/v2`.

The model in the path is any that `/v2/models` lists, slashes included, or a name that stands for the default one. It has
one version, which the path may leave out: `1`, and by its revision and commit where it has those. Other models and
versions are 404. `"stream": true` in a body changes nothing, for the path says it; like all keys without effect it is
named in `x-ignored-parameters`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from falcon.asgi import Request, Response

from common import __version__
from common.calls.call import Origin
from common.errors import InvalidRequest, UnknownModelVersion
from common.protocols import open_inference_answer as answers
from common.protocols import open_inference_rules as rules
from common.protocols.open_inference_answer import OpenInferenceFold
from common.protocols.open_inference_request import GenerateRequest
from common.served_models import Chosen
from common.settings import Settings
from common.tracing.call_span import Operation
from common.validation import Ask, ValidRequest
from web.resources.generation import GenerationResource
from web.resources.resource import Resource, write_json
from web.services import Services


class OpenInferenceCall:
    """See `common.calls.call.Call`."""

    operation: Operation = "text_completion"
    last = b""

    def __init__(
        self, body: GenerateRequest, chosen: Chosen, version: str, settings: Settings, *, stream: bool
    ) -> None:
        """
        Raises:
            InvalidRequest: the parameters do not go together, or not with the model.
        """
        rules.check_combination(body.parameters, settings, stream=stream)
        self._adapter = body.parameters.adapter_id or chosen.adapter
        if chosen.adapter not in (None, self._adapter):
            raise InvalidRequest(f"`adapter_id` names `{self._adapter}`, and the model in the path `{chosen.adapter}`")
        self.model = chosen.model
        self.stream = stream
        self.sequences = max(body.parameters.best_of or 1, 1)
        self.characters = len(body.text_input)
        self.ignored = body.ignored
        self._body = body
        self._settings = settings
        self._names = {"model_name": chosen.adapter or chosen.model.id, "model_version": version}

    async def asks(self) -> Sequence[Ask]:
        asked = rules.ask(self._body, self._settings, self.model.limits)
        return [msgspec.structs.replace(asked, adapter=self._adapter)]

    def fold(self, requests: Sequence[ValidRequest], origin: Origin) -> OpenInferenceFold:
        answer = rules.answer(self._body, requests[0])
        return OpenInferenceFold(answer, details=self._body.parameters.details, **self._names)


class OpenInferenceGenerate(GenerationResource):
    stream = False

    async def on_post(self, request: Request, response: Response, model: str, version: str | None = None) -> None:
        body = await self.parsed(request, GenerateRequest)
        chosen = await chosen_model(self.services, request, model, version)
        call = OpenInferenceCall(
            body, chosen, version or chosen.model.versions[0], self.services.settings, stream=self.stream
        )
        await self.respond(request, response, call)


class OpenInferenceGenerateStream(OpenInferenceGenerate):
    stream = streams = True


class ServerMetadata(Resource):
    """`/v2`: what this server is."""

    async def on_get(self, request: Request, response: Response) -> None:
        write_json(response, answers.encode(answers.ServerMetadata("tgq", __version__, ["generate"])))

    on_head = on_get


class ServerLive(Resource):
    """200 as long as this process answers at all; models, workers and Redis have no part in it."""

    async def on_get(self, request: Request, response: Response) -> None:
        write_json(response, answers.encode(answers.ServerLive(True)))

    on_head = on_get


class ServerReady(Resource):
    """As `/health`: 200 when a request for the default model would be served now, else 503."""

    async def on_get(self, request: Request, response: Response) -> None:
        await self.services.health.check()
        write_json(response, answers.encode(answers.ServerReady(True)))

    on_head = on_get


class ModelList(Resource):
    """`/v2/models`: names of the default model, of all that live workers serve, and of their adapters."""

    async def on_get(self, request: Request, response: Response) -> None:
        names = [listed.name for listed in await self.services.models.listed(request.context.key)]
        write_json(response, answers.encode(answers.ModelList(names)))

    on_head = on_get


class ModelMetadata(Resource):
    async def on_get(self, request: Request, response: Response, model: str, version: str | None = None) -> None:
        chosen = await chosen_model(self.services, request, model, version)
        name = chosen.adapter or chosen.model.id
        write_json(response, answers.encode(answers.model_metadata(name, chosen.model.versions)))

    on_head = on_get


class ModelReady(Resource):
    """200 when a live worker has the model loaded, else 503."""

    async def on_get(self, request: Request, response: Response, model: str, version: str | None = None) -> None:
        chosen = await chosen_model(self.services, request, model, version)
        await self.services.health.check(chosen.model.id)
        write_json(response, answers.encode(answers.ModelReady(chosen.adapter or chosen.model.id, True)))

    on_head = on_get


async def chosen_model(services: Services, request: Request, name: str, version: str | None) -> Chosen:
    """The model a path names.

    Raises:
        UnknownModel, UnknownModelVersion: nobody serves it, or not to this caller.
        ServiceUnavailable: its tokenizer is not to be had here.
    """
    chosen = await services.models.find(name, request.context.key)
    known = chosen.model.versions
    if version is not None and version not in known:
        raise UnknownModelVersion(name, version, known)
    return chosen
