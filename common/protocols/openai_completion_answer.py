"""What clients of `/v1/completions` hear: pure functions from token events to chunks and bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from common.protocols.openai_answer import Head, Stops, Usage, UsageReport, encode, usage
from common.protocols.openai_completion_sequence import CompletionSequence
from common.protocols.openai_logprobs import CompletionLogprobs, completion_logprobs
from common.protocols.prompt_text import PromptText
from common.wire import Tokens


class Choice(Struct, frozen=True, gc=False):
    """Of an answer, or of a chunk; those of a chunk have a finish reason once, in the last one."""

    index: int
    """Prompt by prompt, and within a prompt by choice."""
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | UnsetType | None = UNSET
    """Not OpenAI's: what ended the choice, with the finish reason."""


class Completion(Struct, frozen=True, gc=False):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET


class CompletionAnswer(Struct, frozen=True, kw_only=True):
    """What was asked of one answer, apart from how it is generated."""

    head: Head
    prompts: int
    generated: int
    """Sequences for each prompt."""
    choices: int
    """The best of them that are shown; all of them on a stream."""
    prompt_tokens: int
    """Of all prompts."""
    stops: Stops
    logprobs: int | None = None
    """Alternatives to show with the tokens' log probabilities; None: no log probabilities."""
    echoed: list[PromptText] | None = None
    """What is put before the answers, one for each prompt."""
    prompt_only: bool = False
    """No token was asked for: the one that is generated all the same is not shown."""
    usage: UsageReport = UsageReport()


class CompletionFold:
    """Folds the events of one request, in order, into stream events or the body."""

    def __init__(self, answer: CompletionAnswer) -> None:
        self._answer = answer
        self._sequences = [self._sequence(child) for child in range(answer.prompts * answer.generated)]
        self._null_usage: UnsetType | None = None if answer.usage.at_end else UNSET

    @property
    def generated_tokens(self) -> int:
        return sum(sequence.generated_tokens for sequence in self._sequences)

    def stream_events(self, event: Tokens) -> list[bytes]:
        """The JSON of the chunks: the prompt if it is echoed, one for each token that adds something, the end in one of its own."""
        index = event.child
        sequence = self._sequences[index]
        running = sequence.end is None
        chunks = []
        if not sequence.begun and sequence.prompt:
            chunks.append(self._chunk(Choice(index, sequence.prompt, None, None)))
        with_logprobs = self._answer.logprobs is not None
        for token, text, offset in sequence.take(event):
            if with_logprobs:
                logprobs = completion_logprobs([token], [offset], self._answer.logprobs or 0)
                chunks.append(self._chunk(Choice(index, text, logprobs, None)))
            elif text:
                chunks.append(self._chunk(Choice(index, text, None, None)))
        if running and (end := sequence.end) is not None:
            chunks.append(self._chunk(Choice(index, "", None, end.reason, end.stop)))
        if event.ends and self._answer.usage.at_end:
            chunks.append(self._encode([], self._usage()))
        return chunks

    def body(self, events: Sequence[Tokens]) -> bytes:
        """The JSON of the whole answer; the events must hold the finish of every sequence."""
        for event in events:
            self._sequences[event.child].keep(event)
        choices: list[Choice] = []
        for prompt in range(self._answer.prompts):
            for sequence in self._best(prompt):
                choices.append(self._choice(len(choices), sequence, prompt))
        return self._encode(choices, self._usage())

    def _sequence(self, child: int) -> CompletionSequence:
        answer = self._answer
        echoed = None if answer.echoed is None else answer.echoed[child // answer.generated]
        return CompletionSequence(answer.stops, echoed, prompt_only=answer.prompt_only)

    def _of(self, prompt: int) -> list[CompletionSequence]:
        first = prompt * self._answer.generated
        return self._sequences[first : first + self._answer.generated]

    def _best(self, prompt: int) -> list[CompletionSequence]:
        """The choices for one prompt: of more sequences those whose tokens have the highest mean log probability."""
        sequences = self._of(prompt)
        if len(sequences) == self._answer.choices:
            return sequences
        return sorted(sequences, key=lambda sequence: -sequence.mean_logprob)[: self._answer.choices]

    def _choice(self, index: int, sequence: CompletionSequence, prompt: int) -> Choice:
        end = sequence.end
        if end is None:
            raise ValueError("the events end without a finish")
        logprobs = None
        if self._answer.logprobs is not None:
            # The prompt's tokens are the same for all sequences and come with the first.
            logprobs = sequence.logprobs(self._of(prompt)[0].prefill, self._answer.logprobs)
        return Choice(index, sequence.text, logprobs, end.reason, end.stop)

    def _usage(self) -> Usage:
        return usage(self._answer.prompt_tokens, self.generated_tokens)

    def _chunk(self, choice: Choice) -> bytes:
        return self._encode([choice], self._usage() if self._answer.usage.always else self._null_usage)

    def _encode(self, choices: list[Choice], used: Usage | UnsetType | None) -> bytes:
        head = self._answer.head
        return encode(
            Completion(head.id, "text_completion", head.created, head.model, head.system_fingerprint, choices, used)
        )
