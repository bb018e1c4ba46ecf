"""`/chat_tokenize`: the prompt that a chat becomes, and its tokens. Takes no permit, needs no worker."""

from __future__ import annotations

from falcon.asgi import Request, Response

from common.protocols import openai_chat_rules as rules
from common.protocols.openai_chat_request import ChatRequest
from common.protocols.tgi_answer import encode
from web.resources.resource import Resource
from web.resources.tokenize import send, tokens_in_json


class ChatTokenize(Resource):
    """Reads messages, tools and what else is for the chat template; the rest of the body has no effect."""

    protected = True

    async def on_post(self, request: Request, response: Response) -> None:
        body = await self.parsed(request, ChatRequest)
        model = (await self.services.models.find(body.model)).model

        def render() -> str:
            return rules.prompt(body, rules.read_conversation(body), model.chat_template)

        prompt = await model.validator.in_thread(render)
        # The template writes the special tokens itself.
        pieces = await tokens_in_json(model.validator, prompt, special_tokens=False)
        pieces.appendleft(b'{"tokenize_response":')
        pieces.append(b',"templated_text":' + encode(prompt) + b"}")
        send(response, pieces)
