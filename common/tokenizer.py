"""The model's tokenizer: text to ids for validation, ids to text for the detokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import tokenizers

from common.model_files import ModelFiles, ModelNotFound


@dataclass(frozen=True, slots=True)
class Encoding:
    """Token ids of a text, with the character range `[start, stop)` each one covers ((0, 0) for added special tokens)."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class Tokenizer:
    """A fast tokenizer read from `tokenizer.json`; safe to use from several threads."""

    def __init__(self, files: ModelFiles) -> None:
        if not files.tokenizer_json.exists():
            raise ModelNotFound(f"{files.path} has no tokenizer.json: a fast tokenizer is needed")
        self._tokenizer = tokenizers.Tokenizer.from_file(str(files.tokenizer_json))
        # Padding or truncation saved with the tokenizer would silently change prompts.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._files = files
        self._token_texts: dict[int, str] = {}

    @property
    def vocab_size(self) -> int:
        """Ids the tokenizer knows, added tokens included; the model's logits may have more."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that are control tokens and never part of the text."""
        return frozenset(i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a sequence: the generation config's, else the model config's, else the tokenizer's."""
        for config in (self._files.generation_config, self._files.config):
            eos = config.get("eos_token_id")
            if isinstance(eos, int):
                return frozenset((eos,))
            if isinstance(eos, list) and eos:
                return frozenset(eos)
        token = self._files.tokenizer_config.get("eos_token")
        content = token.get("content") if isinstance(token, dict) else token
        found = self._tokenizer.token_to_id(content) if content else None
        return frozenset() if found is None else frozenset((found,))

    def to_json(self) -> str:
        """The tokenizer as `tokenizer.json` has it."""
        return self._tokenizer.to_str()

    # The batch calls let other threads run meanwhile; `tokenizers.Tokenizer.encode` holds them all up, seconds for a
    # text of a megabyte.

    def ids(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Encoding:
        """Token ids of a text with their places in it."""
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        return Encoding(list(encoding.ids), list(encoding.offsets))

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def knows(self, token_id: int) -> bool:
        """Whether there is such a token; a model's logits may be wider than its vocabulary."""
        return self._tokenizer.id_to_token(token_id) is not None

    def has_token(self, token: str) -> bool:
        """Whether there is a token that is written so."""
        return self._tokenizer.token_to_id(token) is not None

    def token_text(self, token_id: int) -> str:
        """Text of one token by itself, special or not: what lists of tokens show. Empty for unknown ids."""
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._token_texts[token_id] = self.decode([token_id])
        return text
