"""`/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence

from falcon.asgi import Request, Response

from common.protocols import openai_completion_rules as rules
from common.protocols.openai_answer import Head
from common.protocols.openai_completion_answer import CompletionFold
from common.protocols.openai_completion_request import CompletionRequest
from common.protocols.prompt_text import PromptText
from common.settings import Settings
from common.validation import Ask, ValidRequest
from web.models import Chosen
from web.resources.generation import GenerationResource
from web.resources.openai import DONE, answer_head


class CompletionCall:
    """See `web.resources.generation.Call`."""

    first = b""
    last = DONE

    def __init__(self, body: CompletionRequest, chosen: Chosen, settings: Settings, head: Head) -> None:
        """
        Raises:
            InvalidRequest: the fields do not go together.
        """
        rules.check_combination(body, settings)
        self.model = chosen.model
        self.stream = body.stream
        self.sequences = len(body.prompts) * rules.generated(body)
        self.characters = sum(len(prompt) for prompt in body.prompts if isinstance(prompt, str))
        self.ignored = body.ignored
        self._body = body
        self._adapter = chosen.adapter
        self._settings = settings
        self._head = head
        self._echoed: list[PromptText] | None = None

    async def asks(self) -> Sequence[Ask]:
        tokenizer = self.model.validator.tokenizer
        if self._body.echo:
            self._echoed = await self.model.validator.in_thread(lambda: rules.echoed(self._body, tokenizer))
        return rules.asks(self._body, self._echoed, tokenizer, self._settings, self._adapter)

    def fold(self, requests: Sequence[ValidRequest]) -> CompletionFold:
        return CompletionFold(rules.answer(self._body, self._echoed, requests, self._head))


class Completions(GenerationResource):
    async def on_post(self, request: Request, response: Response) -> None:
        body = await self.parsed(request, CompletionRequest)
        chosen = await self.services.models.find(body.model)
        head = answer_head(request, "cmpl", chosen)
        await self.respond(request, response, CompletionCall(body, chosen, self.services.settings, head))
