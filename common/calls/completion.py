"""A request to `/v1/completions`, from its body to its answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.calls.call import Origin
from common.calls.head import DONE, answer_head
from common.protocols import openai_completion_rules as rules
from common.protocols.openai_completion_answer import CompletionFold
from common.protocols.openai_completion_request import CompletionRequest
from common.protocols.prompt_text import PromptText
from common.served_models import Chosen
from common.settings import Settings
from common.tracing.call_span import Operation
from common.validation import Ask, ValidRequest


class CompletionCall:
    """See `common.calls.call.Call`."""

    operation: Operation = "text_completion"
    last = DONE

    def __init__(self, body: CompletionRequest, chosen: Chosen, settings: Settings, request_id: str) -> None:
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
        self._head = answer_head("cmpl", request_id, chosen)
        self._echoed: list[PromptText] | None = None

    async def asks(self) -> Sequence[Ask]:
        tokenizer = self.model.validator.tokenizer
        if self._body.echo:
            self._echoed = await self.model.validator.in_thread(lambda: rules.echoed(self._body, tokenizer))
        return rules.asks(self._body, self._echoed, tokenizer, self._settings, self._adapter)

    def fold(self, requests: Sequence[ValidRequest], origin: Origin) -> CompletionFold:
        head = msgspec.structs.replace(self._head, created=origin.created)
        return CompletionFold(rules.answer(self._body, self._echoed, requests, head))
