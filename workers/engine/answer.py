"""What one sequence says: its tokens with their texts, and when it ends."""

from __future__ import annotations

from common.tokenizer import Tokenizer
from common.wire import FinishReason, Job, PrefillToken, Token, TopToken
from workers.engine.detokenizer import Detokenizer
from workers.engine.grammar import GrammarState
from workers.engine.sampler import Choice
from workers.engine.stopping import StopStrings


class Answer:
    """Text and end of one sequence, a pure function of its job and generated ids.

    Rules for the end, in TGI's order: the length limit, then an end-of-text id, then a stop token id or a stop string. All
    of them hold within a grammar too, so that an answer that does not end with end-of-text may not match its grammar.

    A stop string is looked for in the text of all generated tokens, that of special tokens included; it may end within a
    token, the answer then ends right behind the match. Text that may be the beginning of a stop string is held back and
    comes with the token that settles it.

    Special tokens carry no text of the answer. So while text is held back, the token that it belongs to waits one step:
    should a special token settle it (end of text, most often), the token before carries the text.
    """

    def __init__(self, job: Job, tokenizer: Tokenizer, grammar: GrammarState | None = None) -> None:
        """
        Args:
            grammar: at its start; told of every token.
        """
        self._parameters = job.parameters
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, job.prompt_ids)
        self._stops = StopStrings(job.parameters.stop)
        self._generated = 0
        self._held = ""
        """Text not given out; it may be the beginning of a stop string."""
        self._waiting: Token | None = None
        """The newest token, while its text is not settled."""
        self.grammar = grammar
        self.finished: FinishReason | None = None
        self.stop: str | None = None
        """The stop string that ended the answer."""
        self.prefill: list[PrefillToken] = []
        for token_id in job.generated_ids:
            if self.finished is None:
                self.append(Choice(token_id, None))
        # Earlier attempts gave these out already.
        self._waiting = None

    @property
    def next_offset(self) -> int:
        """Index of the first token that `append` has not returned."""
        return self._generated - (self._waiting is not None)

    def append(self, choice: Choice) -> list[Token]:
        """Take the next token.

        Returns:
            The tokens that are settled now, in order. `finished` tells whether this was the last token.
        """
        self._generated += 1
        if self.grammar is not None:
            self.grammar.advance(choice.id)
        ends = self._ending(choice.id)
        special = choice.id in self._tokenizer.special_ids or ends == "eos_token"
        before, self._waiting = self._waiting, None
        if special:
            token = self._token(choice, self._tokenizer.token_text(choice.id), special=True)
            return self._append_special(before, token, ends)

        text = self._detokenizer.push(choice.id)
        if ends is None:
            text, ends = self._find_stop(text)
        text = self._held + text
        held = 0 if ends else min(self._stops.held, len(text))
        self._held = text[len(text) - held :]
        token = self._token(choice, text[: len(text) - held], special=False)
        self.finished = ends
        settled = [before] if before else []
        if held:
            self._waiting = token
        else:
            settled.append(token)
        return settled

    def prefill_token(self, choice: Choice) -> PrefillToken:
        """One token of the prompt."""
        top = [self._top_token(*top) for top in choice.top]
        return PrefillToken(choice.id, self._tokenizer.token_text(choice.id), choice.logprob, top)

    def _append_special(self, before: Token | None, token: Token, ends: FinishReason | None) -> list[Token]:
        if ends is None:
            _, ends = self._find_stop(token.text)
        self.finished = ends
        held, self._held = self._held, ""
        if before is not None:
            return [_with_text(before, before.text + held), token]
        if held:
            # Only when the answer was resumed right behind held text and then went another way: the text matters more
            # than the mark.
            return [Token(token.id, held, token.logprob, False, token.top)]
        return [token]

    def _ending(self, token_id: int) -> FinishReason | None:
        if self._generated >= self._parameters.max_new_tokens:
            return "length"
        # Behind the end of a grammar there is nothing.
        if token_id in self._tokenizer.eos_ids and not (self._parameters.ignore_eos and self.grammar is None):
            return "eos_token"
        if token_id in self._parameters.stop_token_ids:
            return "stop_sequence"
        return None

    def _find_stop(self, text: str) -> tuple[str, FinishReason | None]:
        """The part of `text` that belongs to the answer, and whether a stop string ends it."""
        match = self._stops.feed(text)
        if match is None:
            return text, None
        self.stop = match.stop
        return text[: match.end], "stop_sequence"

    def _token(self, choice: Choice, text: str, *, special: bool) -> Token:
        return Token(choice.id, text, choice.logprob, special, [self._top_token(*top) for top in choice.top])

    def _top_token(self, token_id: int, logprob: float | None) -> TopToken:
        special = token_id in self._tokenizer.special_ids
        return TopToken(token_id, self._tokenizer.token_text(token_id), logprob, special)


def _with_text(token: Token, text: str) -> Token:
    return Token(token.id, text, token.logprob, token.special, token.top)
