"""`/invocations`: what SageMaker's clients call, for all three kinds of request. Errors are told in TGI's form."""

from __future__ import annotations

import asyncio

from falcon.asgi import Request, Response

from common.protocols.invocation import read_invocation
from common.protocols.openai_chat_request import ChatRequest
from common.protocols.openai_completion_request import CompletionRequest
from web.generation import begin_record
from web.resources.chat import ChatCall
from web.resources.completions import CompletionCall
from web.resources.generate import GenerateCall
from web.resources.generation import Call, GenerationResource
from web.resources.openai import answer_head


class Invocations(GenerationResource):
    async def on_post(self, request: Request, response: Response) -> None:
        raw = await self.read(request)
        body = await asyncio.to_thread(read_invocation, raw)
        begin_record(self.services, request)
        models, settings = self.services.models, self.services.settings
        call: Call
        match body:
            case ChatRequest():
                chosen = await models.find(body.model)
                call = ChatCall(body, chosen, settings, answer_head(request, "chatcmpl", chosen))
            case CompletionRequest():
                chosen = await models.find(body.model)
                call = CompletionCall(body, chosen, settings, answer_head(request, "cmpl", chosen))
            case _:
                call = GenerateCall(body, models.default, settings, stream=body.stream, in_array=not body.stream)
        await self.respond(request, response, call)
