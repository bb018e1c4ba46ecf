"""Probes: `/health`, `/ping`, and one for each of the questions that Kubernetes asks. None does any work of its own."""

from __future__ import annotations

import falcon
from falcon.asgi import Request, Response

from common.protocols.tgi_answer import encode
from web.resources.resource import Resource, write_json


class Health(Resource):
    """200 with an empty body when a request sent now would be served, else 503."""

    async def on_get(self, request: Request, response: Response) -> None:
        await self.services.health.check()

    on_head = on_get


class Live(Resource):
    """200 as long as this process' event loop turns; models, workers and Redis have no part in it."""

    async def on_get(self, request: Request, response: Response) -> None:
        response.status = falcon.HTTP_200

    on_head = on_get


class Ready(Resource):
    """As `/health`, and says what is missing."""

    async def on_get(self, request: Request, response: Response) -> None:
        await self.services.health.check_ready()

    on_head = on_get


class Startup(Resource):
    """How far the workers are with loading the model; 503 until one has had it."""

    async def on_get(self, request: Request, response: Response) -> None:
        startup = await self.services.health.startup()
        if not startup.started:
            response.status = falcon.HTTP_503
            response.set_header("retry-after", "1")
        write_json(response, encode(startup))

    on_head = on_get
