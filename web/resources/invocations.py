"""`/invocations`: what SageMaker's clients call, for all three kinds of request. Errors are told in TGI's form."""

from __future__ import annotations

import asyncio

from falcon.asgi import Request, Response

from common.calls.call import Call
from common.calls.chat import ChatCall
from common.calls.completion import CompletionCall
from common.protocols.invocation import read_invocation
from common.protocols.openai_chat_request import ChatRequest
from common.protocols.openai_completion_request import CompletionRequest
from web.generation import begin_record
from web.resources.generate import GenerateCall
from web.resources.generation import GenerationResource


class Invocations(GenerationResource):
    async def on_post(self, request: Request, response: Response) -> None:
        raw = await self.read(request)
        body = await asyncio.to_thread(read_invocation, raw)
        begin_record(self.services, request)
        models, settings = self.services.models, self.services.settings
        call: Call
        match body:
            case ChatRequest():
                chosen = await models.find(body.model, request.context.key)
                call = ChatCall(body, chosen, settings, request.context.request_id)
            case CompletionRequest():
                chosen = await models.find(body.model, request.context.key)
                call = CompletionCall(body, chosen, settings, request.context.request_id)
            case _:
                call = GenerateCall(body, models.default, settings, stream=body.stream, in_array=not body.stream)
        await self.respond(request, response, call)
