"""Every route of the service."""

from __future__ import annotations

from falcon.asgi import App, Request, Response

from web.resources.generate import Generate, GenerateStream, Root
from web.resources.resource import Resource
from web.resources.service import Health, Info, Metrics
from web.resources.tokenize import Tokenize
from web.services import Services

ROUTES: dict[str, type[Resource]] = {
    # TGI
    "/": Root,
    "/generate": Generate,
    "/generate_stream": GenerateStream,
    "/tokenize": Tokenize,
    "/health": Health,
    "/ping": Health,
    "/info": Info,
    "/metrics": Metrics,
}


def add_routes(app: App[Request, Response], services: Services) -> None:
    for path, resource in ROUTES.items():
        app.add_route(path, resource(services))
