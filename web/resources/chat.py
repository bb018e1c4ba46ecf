"""`/v1/chat/completions`."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from falcon.asgi import Request, Response

from common.protocols import openai_chat_rules as rules
from common.protocols.openai_answer import Head
from common.protocols.openai_chat_answer import ChatFold
from common.protocols.openai_chat_request import ChatRequest
from common.settings import Settings
from common.validation import Ask, ValidRequest
from web.models import Chosen
from web.resources.generation import GenerationResource
from web.resources.openai import DONE, answer_head


class ChatCall:
    """See `web.resources.generation.Call`."""

    first = b""
    last = DONE

    def __init__(self, body: ChatRequest, chosen: Chosen, settings: Settings, head: Head) -> None:
        """
        Raises:
            InvalidRequest: the fields do not go together.
        """
        rules.check_combination(body, settings)
        self.model = chosen.model
        self.stream = body.stream
        self.sequences = rules.choices(body)
        self.characters = 0
        self.ignored = body.ignored
        self._body = body
        self._adapter = chosen.adapter
        self._settings = settings
        self._head = head
        self._conversation: rules.Conversation

    async def asks(self) -> Sequence[Ask]:
        # Long histories, tools and templates take their time.
        return [await self.model.validator.in_thread(self._ask)]

    def fold(self, requests: Sequence[ValidRequest]) -> ChatFold:
        template = self.model.chat_template
        key = secrets.token_hex(12)
        return ChatFold(rules.answer(self._body, self._conversation, requests[0], template, self._head, key))

    def _ask(self) -> Ask:
        conversation = self._conversation = rules.read_conversation(self._body)
        self.characters = conversation.characters
        template = self.model.chat_template
        prompt = rules.prompt(self._body, conversation, template)
        return rules.ask(self._body, conversation, prompt, template, self._settings, self._adapter)


class ChatCompletions(GenerationResource):
    async def on_post(self, request: Request, response: Response) -> None:
        body = await self.parsed(request, ChatRequest)
        chosen = await self.services.models.find(body.model)
        head = answer_head(request, "chatcmpl", chosen)
        await self.respond(request, response, ChatCall(body, chosen, self.services.settings, head))
