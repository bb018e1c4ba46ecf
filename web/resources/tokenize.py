"""`/tokenize`: the tokens a prompt is made of. Takes no permit, needs no worker."""

from __future__ import annotations

from falcon.asgi import Request, Response

from common.protocols.json_body import parse_body
from common.protocols.tgi_answer import encode
from common.protocols.tgi_request import GenerateRequest
from web.body import read_json_body
from web.resources.resource import Resource, write_json


class Tokenize(Resource):
    protected = True

    async def on_post(self, request: Request, response: Response) -> None:
        body = parse_body(GenerateRequest, await read_json_body(request, self.services.settings.payload_limit))
        write_json(response, encode(await self.services.validator.tokenize(body.inputs)))
