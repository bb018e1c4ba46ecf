"""`/v1/chat/completions`."""

from __future__ import annotations

from falcon.asgi import Request, Response

from common.calls.chat import ChatCall
from common.protocols.openai_chat_request import ChatRequest
from web.resources.generation import GenerationResource


class ChatCompletions(GenerationResource):
    async def on_post(self, request: Request, response: Response) -> None:
        body = await self.parsed(request, ChatRequest)
        chosen = await self.services.models.find(body.model, request.context.key)
        call = ChatCall(body, chosen, self.services.settings, request.context.request_id)
        await self.respond(request, response, call)
