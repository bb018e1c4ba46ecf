"""A request to `/v1/chat/completions`, from its body to its answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.calls.call import Origin
from common.calls.head import DONE, answer_head
from common.chat_template import TooSlow
from common.protocols import openai_chat_rules as rules
from common.protocols.openai_chat_answer import ChatFold
from common.protocols.openai_chat_request import ChatRequest
from common.served_models import Chosen
from common.settings import Settings
from common.tracing.call_span import Operation
from common.validation import Ask, ValidRequest

AT_ONCE_SECONDS = 0.001
"""Processor time that a short conversation's template may use on the event loop, where it takes some 50 microseconds: waking a
thread takes twice that. One that needs more gets a thread."""


class ChatCall:
    """See `common.calls.call.Call`."""

    operation: Operation = "chat"
    last = DONE

    def __init__(self, body: ChatRequest, chosen: Chosen, settings: Settings, request_id: str) -> None:
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
        self._head = answer_head("chatcmpl", request_id, chosen)
        self._conversation: rules.Conversation

    async def asks(self) -> Sequence[Ask]:
        if rules.is_short(self._body):
            try:
                return [self._ask(AT_ONCE_SECONDS)]
            except TooSlow:
                pass  # A template has its ways.
        # Long histories, tools and templates take their time, and so does tokenizing what they become.
        return [await self.model.validator.in_thread(self._tokenized)]

    def fold(self, requests: Sequence[ValidRequest], origin: Origin) -> ChatFold:
        template = self.model.chat_template
        head = msgspec.structs.replace(self._head, created=origin.created)
        return ChatFold(rules.answer(self._body, self._conversation, requests[0], template, head, origin.key))

    def _tokenized(self) -> Ask:
        ask = self._ask()
        if isinstance(ask.prompt, str):
            ids = self.model.validator.tokenizer.ids(ask.prompt, add_special_tokens=ask.special_tokens)
            ask = msgspec.structs.replace(ask, prompt=ids)
        return ask

    def _ask(self, cpu_seconds: float | None = None) -> Ask:
        conversation = self._conversation = rules.read_conversation(self._body)
        self.characters = conversation.characters
        template = self.model.chat_template
        prompt = rules.prompt(self._body, conversation, template, cpu_seconds)
        return rules.ask(self._body, conversation, prompt, template, self._settings, self._adapter)
