"""`/v1/models`."""

from __future__ import annotations

from falcon.asgi import Request, Response

from common.errors import UnknownModel
from common.protocols.openai_models import Model, model, model_body, model_list
from common.served_models import DEFAULT_NAMES
from web.resources.resource import Resource, write_json


class _Listing(Resource):
    async def all(self, request: Request) -> list[Model]:
        """Those that the caller's key is for."""
        listed = await self.services.models.listed(request.context.key)
        return [model(one.name, one.parent) for one in listed]


class Models(_Listing):
    async def on_get(self, request: Request, response: Response) -> None:
        write_json(response, model_list(await self.all(request)))

    on_head = on_get


class OneModel(_Listing):
    """Of a name that may hold slashes."""

    async def on_get(self, request: Request, response: Response, name: str) -> None:
        everything = await self.all(request)
        wanted = self.services.models.default.id if name in DEFAULT_NAMES else name
        for one in everything:
            if one.id == wanted:
                write_json(response, model_body(one))
                return
        raise UnknownModel(name)

    on_head = on_get
