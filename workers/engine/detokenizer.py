"""Ids to text, one id at a time."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from itertools import islice

from common.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_LONGEST_INCOMPLETE = 3
"""Bytes of an unfinished UTF-8 character at most. Byte-fallback decoders show each of them as one U+FFFD."""
_CONTEXT = 8
"""Ids kept on the left, so that decoders that treat the first token of a text in their own way see a text going on."""
_LONGEST_WINDOW = 24
"""Ids decoded at most for one new id: what keeps the cost per token constant."""


class Detokenizer:
    """Text of generated ids, given out as soon as it is final.

    The pieces joined are `decode(prompt ids + generated ids)` behind `decode(prompt ids)`, special tokens skipped. A
    character whose bytes are spread over several ids comes whole with the last of them; the bytes of one that is never
    finished are dropped at the end, and show as U+FFFD when other text follows. If the prompt itself ends within a
    character, that character is given out once it is complete.

    The state is a function of the prompt and generated ids: feed them again and it is the same.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Ids[int]) -> None:
        self._tokenizer = tokenizer
        whole, partial = self._left_context(prompt_ids)
        self._window = whole + partial
        self._read = len(self._window)
        """Ids of the window whose text is wholly the prompt's or given out."""
        self._given = tokenizer.decode(self._window)
        """Text of the window that is the prompt's or given out."""
        self._whole_prompt = tokenizer.decode(whole) if partial else None
        """The prompt's text without the character it ends within, until the first piece; None if there is no such."""

    def push(self, token_id: int) -> str:
        """What `token_id` adds to the text; empty for special tokens and within a character."""
        if not self._has_text(token_id):
            return ""
        self._window.append(token_id)
        text = self._tokenizer.decode(self._window)
        if not text.startswith(self._given):
            text = self._reconcile(text)
        incomplete = _incomplete(text)
        final = len(text) - incomplete
        piece = text[len(self._given) : final]
        if piece:
            self._given, self._whole_prompt = text[:final], None
        if not incomplete:
            self._read = len(self._window)
        if len(self._window) >= _LONGEST_WINDOW or (len(self._window) >= 2 * _CONTEXT and not incomplete):
            self._shorten(incomplete)
        return piece

    def _left_context(self, prompt_ids: Ids[int]) -> tuple[list[int], list[int]]:
        """The last ids of the prompt that make whole characters, and those of a character it ends within."""
        newest_first = (token_id for token_id in reversed(prompt_ids) if self._has_text(token_id))
        ids = list(islice(newest_first, _CONTEXT + _LONGEST_INCOMPLETE))[::-1]
        for end in range(len(ids), len(ids) - _LONGEST_INCOMPLETE - 1, -1):
            for start in range(end - _CONTEXT, end - _CONTEXT + 4):
                context = ids[max(0, start) : max(0, end)]
                text = self._tokenizer.decode(context)
                if not text.startswith(_REPLACEMENT) and not text.endswith(_REPLACEMENT):
                    return context, ids[max(0, end) :]
        return ids, []

    def _has_text(self, token_id: int) -> bool:
        return token_id not in self._tokenizer.special_ids and self._tokenizer.knows(token_id)

    def _reconcile(self, text: str) -> str:
        """Text given out before reads differently now: make a window that fits, and return its text."""
        if self._whole_prompt is not None and text.startswith(self._whole_prompt):
            # The character that the prompt ended within is complete.
            self._given, self._whole_prompt = self._whole_prompt, None
            return text
        # Byte fallback decodes a run of bytes as a whole, so that a new character's first byte spoils the ones before it
        # until its last byte is there. What was given out stays.
        self._window, self._read, self._given = self._window[self._read :], 0, ""
        return self._tokenizer.decode(self._window)

    def _shorten(self, incomplete: int) -> None:
        """Forget ids on the left."""
        for kept in range(_CONTEXT, _CONTEXT - 4, -1):
            window = self._window[-kept:]
            text = self._tokenizer.decode(window)
            # A window must not begin within a character, which is four ids at most.
            if not incomplete and self._given.endswith(text):
                break
        self._read = max(0, self._read - len(self._window) + kept)
        self._window = window
        self._given = text[: len(text) - incomplete]


def _incomplete(text: str) -> int:
    """Characters at the end of `text` that further bytes may still turn into another character."""
    if not text.endswith(_REPLACEMENT):
        return 0
    return min(len(text) - len(text.rstrip(_REPLACEMENT)), _LONGEST_INCOMPLETE)
