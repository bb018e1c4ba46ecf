"""One sequence of a completion: generated tokens in, its text out."""

from __future__ import annotations

from collections.abc import Iterator

from common.protocols.best_of import mean_logprob
from common.protocols.openai_answer import End, Stops
from common.protocols.openai_logprobs import CompletionLogprobs, completion_logprobs
from common.protocols.prompt_text import PromptText
from common.wire import PrefillToken, Token, Tokens


class CompletionSequence:
    """Folds the events of one child, in order."""

    def __init__(self, stops: Stops, echoed: PromptText | None, *, prompt_only: bool) -> None:
        """
        Args:
            echoed: the prompt, where the text begins with it.
            prompt_only: what is generated is not shown.
        """
        self.begun = False
        self.end: End | None = None
        self.generated_tokens = 0
        self.prefill: list[PrefillToken] = []
        """The prompt's tokens, if this sequence brings them."""
        self._stops = stops
        self._echoed = echoed
        self._prompt_only = prompt_only
        self._length = len(self.prompt)
        # Kept for a whole answer only.
        self._texts = [self.prompt]
        self._tokens: list[Token] = []
        self._offsets: list[int] = []

    @property
    def prompt(self) -> str:
        """What comes before the answer."""
        return "" if self._echoed is None else self._echoed.text

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def mean_logprob(self) -> float:
        return mean_logprob(self._tokens)

    def take(self, event: Tokens) -> Iterator[tuple[Token, str, int]]:
        """Each token, what it adds to the text, and where that begins.

        A sequence may be told to be over once more, with the end of its request.
        """
        if self.end is not None:
            return
        self.begun = True
        finish = event.finish
        if finish is not None and finish.prefill:
            self.prefill = finish.prefill
        if self._prompt_only:
            self.end = None if finish is None else End("length", None)
            return
        texts, end = self._stops.texts(event)
        for token, text in zip(event.tokens, texts, strict=True):
            self.generated_tokens += 1
            yield token, text, self._length
            self._length += len(text)
        if finish is not None:
            self.generated_tokens = finish.generated_tokens
            self.end = end

    def keep(self, event: Tokens) -> None:
        """Take an event for a whole answer."""
        for token, text, offset in self.take(event):
            self._texts.append(text)
            self._tokens.append(token)
            self._offsets.append(offset)

    def logprobs(self, prefill: list[PrefillToken], top: int) -> CompletionLogprobs:
        """Of the kept tokens, behind those of the prompt where it is echoed.

        Args:
            prefill: the prompt's tokens.
            top: alternatives to show at most.
        """
        if self._echoed is None:
            return completion_logprobs(self._tokens, self._offsets, top)
        return completion_logprobs([*prefill, *self._tokens], [*self._echoed.starts, *self._offsets], top)
