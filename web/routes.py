"""Every route of the service."""

from __future__ import annotations

from falcon.asgi import App, Request, Response

from web.openapi.document import build_document
from web.resources.batches import Batches, BatchEvents, CancelBatch, OneBatch
from web.resources.chat import ChatCompletions
from web.resources.chat_tokenize import ChatTokenize
from web.resources.completions import Completions
from web.resources.docs import Docs, Documentation, DocumentationResource, OpenApi
from web.resources.files import FileContent, Files, OneFile
from web.resources.generate import Generate, GenerateStream, Root
from web.resources.health import Health, Live, Ready, Startup
from web.resources.invocations import Invocations
from web.resources.models import Models, OneModel
from web.resources.open_inference import (
    ModelList,
    ModelMetadata,
    ModelReady,
    OpenInferenceGenerate,
    OpenInferenceGenerateStream,
    ServerLive,
    ServerMetadata,
    ServerReady,
)
from web.resources.playground import Playground, PlaygroundFile, Status
from web.resources.requests import OneRequest
from web.resources.resource import Resource
from web.resources.service import Info, Metrics
from web.resources.tokenize import Tokenize
from web.services import Services

ROUTES: dict[str, type[Resource]] = {
    # TGI
    "/": Root,
    "/generate": Generate,
    "/generate_stream": GenerateStream,
    "/tokenize": Tokenize,
    "/chat_tokenize": ChatTokenize,
    "/invocations": Invocations,
    "/health": Health,
    "/ping": Health,
    "/health/live": Live,
    "/health/ready": Ready,
    "/health/startup": Startup,
    "/info": Info,
    "/metrics": Metrics,
    # OpenAI
    "/v1/chat/completions": ChatCompletions,
    "/v1/completions": Completions,
    "/v1/models": Models,
    "/v1/models/{name:path}": OneModel,
    "/v1/files": Files,
    "/v1/files/{file_id}": OneFile,
    "/v1/files/{file_id}/content": FileContent,
    "/v1/batches": Batches,
    "/v1/batches/{batch_id}": OneBatch,
    "/v1/batches/{batch_id}/cancel": CancelBatch,
    "/v1/batches/{batch_id}/events": BatchEvents,
    # requests by id, whatever their API
    "/v1/requests/{request_id}": OneRequest,
    # Open Inference Protocol
    "/v2": ServerMetadata,
    "/v2/health/live": ServerLive,
    "/v2/health/ready": ServerReady,
    "/v2/models": ModelList,
    "/v2/models/{model}": ModelMetadata,
    "/v2/models/{model}/ready": ModelReady,
    "/v2/models/{model}/generate": OpenInferenceGenerate,
    "/v2/models/{model}/generate_stream": OpenInferenceGenerateStream,
    "/v2/models/{model}/versions/{version}": ModelMetadata,
    "/v2/models/{model}/versions/{version}/ready": ModelReady,
    "/v2/models/{model}/versions/{version}/generate": OpenInferenceGenerate,
    "/v2/models/{model}/versions/{version}/generate_stream": OpenInferenceGenerateStream,
}

PLAYGROUND: dict[str, type[Resource]] = {
    "/playground": Playground,
    "/playground/status": Status,
    "/playground/{file}": PlaygroundFile,
}

DOCUMENTATION: dict[str, type[DocumentationResource]] = {
    "/openapi.json": OpenApi,
    "/api-doc/openapi.json": OpenApi,
    "/docs": Docs,
}


def add_routes(app: App[Request, Response], services: Services) -> None:
    routes = ROUTES | PLAYGROUND if services.settings.playground else ROUTES
    for path, resource in routes.items():
        app.add_route(path, resource(services))
    documentation = Documentation(lambda: build_document(services.settings, {**routes, **DOCUMENTATION}))
    for path, documenting in DOCUMENTATION.items():
        app.add_route(path, documenting(services, documentation))
