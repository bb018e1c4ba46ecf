"""`/v1/completions`."""

from __future__ import annotations

from falcon.asgi import Request, Response

from common.calls.completion import CompletionCall
from common.protocols.openai_completion_request import CompletionRequest
from web.resources.generation import GenerationResource


class Completions(GenerationResource):
    async def on_post(self, request: Request, response: Response) -> None:
        body = await self.parsed(request, CompletionRequest)
        chosen = await self.services.models.find(body.model, request.context.key)
        call = CompletionCall(body, chosen, self.services.settings, request.context.request_id)
        await self.respond(request, response, call)
