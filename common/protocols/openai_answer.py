"""What chat and completions answers share: who answers, usage, and how generated tokens become the text of a choice."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from common.wire import Tokens

encode = msgspec.json.Encoder().encode

NO_LOGPROB = -9999.0
"""OpenAI's number for tokens that are all but impossible, where JSON has no infinity."""


class Head(Struct, frozen=True):
    """What all chunks of an answer begin with."""

    id: str
    created: int
    """Unix seconds."""
    model: str
    system_fingerprint: str


class Usage(Struct, frozen=True, gc=False):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


def usage(prompt_tokens: int, completion_tokens: int) -> Usage:
    return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)


class UsageReport(Struct, frozen=True):
    """Where a stream tells its usage."""

    at_end: bool = False
    """In a chunk of its own, the last."""
    always: bool = False
    """In every chunk, up to there."""


class End(Struct, frozen=True, gc=False):
    """How a choice ended."""

    reason: Literal["stop", "length"]
    stop: str | int | None
    """The stop string or the id of the stop token that ended it."""


class Stops(Struct, frozen=True):
    """The stop strings of a request, which are no part of its answer unless wanted."""

    strings: list[str]
    kept: bool = False

    def texts(self, event: Tokens) -> tuple[list[str], End | None]:
        """What each token adds to the text of its choice, and the end, if this is it.

        The engine holds back what may become a stop string and gives it out with the token that settles it. So a whole
        match is in the text of the last token, or in that of the last two where a special token completes it.
        """
        texts = ["" if token.special else token.text for token in event.tokens]
        finish = event.finish
        if finish is None:
            return texts, None
        if finish.reason == "eos_token":
            return texts, End("stop", None)
        if finish.reason == "length":
            # The limit ends an answer before its stop strings are looked for; here the string counts.
            found = self._first(texts[-1]) if texts else None
            if found is None:
                return texts, End("length", None)
            start, stop = found
            texts[-1] = texts[-1][: start + (len(stop) if self.kept else 0)]
            return texts, End("stop", stop)
        if finish.stop is None:
            return texts, End("stop", event.tokens[-1].id if event.tokens else None)
        if not self.kept and texts:
            self._cut(event, texts, finish.stop)
        return texts, End("stop", finish.stop)

    def _first(self, text: str) -> tuple[int, str] | None:
        found = [(text.find(stop), -len(stop), stop) for stop in self.strings if stop in text]
        if not found:
            return None
        start, _, stop = min(found)
        return start, stop

    @staticmethod
    def _cut(event: Tokens, texts: list[str], stop: str) -> None:
        if not event.tokens[-1].special:
            texts[-1] = texts[-1].removesuffix(stop)
        elif len(texts) > 1:
            rest = event.tokens[-1].text
            before = next(
                (
                    cut
                    for cut in range(len(stop) - 1, 0, -1)
                    if texts[-2].endswith(stop[:cut]) and rest.startswith(stop[cut:])
                ),
                0,
            )
            texts[-2] = texts[-2][: len(texts[-2]) - before]
