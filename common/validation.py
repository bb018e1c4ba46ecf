"""From what a protocol asks for to a request that may be queued; the same for every protocol.

What a parameter's value may be is each protocol's business (`common.protocols`). Here is what needs the model: tokens,
lengths, grammars, adapters. Tokenizing happens in a bounded pool of threads, so that long prompts never hold up an event
loop.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
from msgspec import Struct

from common.errors import InvalidRequest, TooLong, UnknownAdapter
from common.grammar import Grammar
from common.grammar_checker import GrammarChecker
from common.limits import Limits
from common.parameters import GenerationParameters
from common.settings import Settings
from common.tokenizer import Encoding, Tokenizer

T = TypeVar("T")

SHORT_TEXT = 256
"""Characters that are tokenized sooner (within a fifth of a millisecond at worst) than a thread is woken."""

_NAMED = re.compile(r"`([a-z_]+)`")


class Ask(Struct, frozen=True, kw_only=True):
    """One prompt and how to go on from it, as a protocol read it from its caller's words."""

    prompt: str | list[int]
    parameters: GenerationParameters
    """Resolved, but for `grammar` and, where it fills the context, `max_new_tokens`."""
    fills_context: bool = False
    """The answer may be as long as the context has room for, whatever `max_new_tokens` says."""
    special_tokens: bool = True
    """The tokenizer adds what it puts around a text; a rendered chat template has that already."""
    truncate: int | None = None
    """Keep this many tokens of the prompt's end."""
    grammar: Callable[[], Grammar] | None = None
    """Makes the grammar; called off the event loop, for schemas may be large."""
    adapter: str | None = None
    names: dict[str, str] = {}
    """What the caller calls `inputs`, `max_new_tokens`, `grammar`, ...: errors name the caller's fields."""


class ValidRequest(Struct, frozen=True):
    """A request that may be queued."""

    prompt_ids: list[int]
    parameters: GenerationParameters
    adapter: str | None = None


class Validator:
    """Checks requests against one model's tokenizer and limits."""

    def __init__(
        self,
        settings: Settings,
        limits: Limits,
        tokenizer: Tokenizer,
        grammars: GrammarChecker,
        threads: ThreadPoolExecutor,
    ) -> None:
        """
        Args:
            grammars, threads: the process's, whatever the model; whoever made them closes them.
        """
        self.limits = limits
        self.tokenizer = tokenizer
        self._settings = settings
        self._grammars = grammars
        self._threads = threads

    async def validate(self, ask: Ask, known_adapters: Collection[str] | None = None) -> ValidRequest:
        """Tokenize, look at lengths, compile the grammar.

        Args:
            ask: what is asked for.
            known_adapters: names that `adapter` may have; None: not known here, the worker decides.

        Raises:
            InvalidRequest: names the first field that breaks a rule, with its limit.
            UnknownAdapter: `adapter` is none of the known names.
            ServiceUnavailable: the grammar cannot be checked now.
        """
        try:
            return await self._validate(ask, known_adapters)
        except InvalidRequest as error:
            error.message = _NAMED.sub(lambda match: f"`{ask.names.get(match[1], match[1])}`", error.message)
            raise

    async def tokenize(self, text: str, *, special_tokens: bool = True) -> Encoding:
        """Tokens of a text with their places in it."""
        return await self.in_thread(lambda: self.tokenizer.encode(text, add_special_tokens=special_tokens))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do what takes long for large requests where it holds nobody up."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _validate(self, ask: Ask, known_adapters: Collection[str] | None) -> ValidRequest:
        if ask.adapter is not None and known_adapters is not None and ask.adapter not in known_adapters:
            raise UnknownAdapter(ask.adapter, known_adapters)
        ids = await self._ids(ask)
        parameters = ask.parameters
        if ask.fills_context:
            room = self.limits.max_total_tokens - len(ids)
            parameters = msgspec.structs.replace(parameters, max_new_tokens=room)
        self._check_lengths(len(ids), parameters.max_new_tokens)
        if ask.grammar is not None:
            parameters = msgspec.structs.replace(parameters, grammar=await self._grammar(ask.grammar))
        parameters.check()
        parameters.check_vocabulary(self.tokenizer.vocab_size)
        return ValidRequest(ids, parameters, ask.adapter)

    async def _ids(self, ask: Ask) -> list[int]:
        prompt = ask.prompt
        if isinstance(prompt, str):
            ids = await self._text_ids(prompt, special_tokens=ask.special_tokens)
        else:
            ids = prompt
            limit = self.tokenizer.vocab_size
            if ids and not 0 <= min(ids) <= max(ids) < limit:
                wrong = min(ids) if min(ids) < 0 else max(ids)
                raise InvalidRequest(f"`inputs` must hold token ids between 0 and {limit - 1}, given {wrong}")
        return ids if ask.truncate is None else ids[-ask.truncate :]

    async def _text_ids(self, text: str, *, special_tokens: bool) -> list[int]:
        if len(text) <= SHORT_TEXT:
            return self.tokenizer.ids(text, add_special_tokens=special_tokens)
        return await self.in_thread(lambda: self.tokenizer.ids(text, add_special_tokens=special_tokens))

    def _check_lengths(self, inputs: int, max_new_tokens: int) -> None:
        if not inputs:
            raise InvalidRequest("`inputs` must hold at least one token")
        if inputs + max_new_tokens > self.limits.max_total_tokens:
            raise TooLong(
                f"`inputs` tokens + `max_new_tokens` must be at most {self.limits.max_total_tokens}, "
                f"given {inputs} `inputs` tokens and {max_new_tokens} `max_new_tokens`"
            )
        if inputs > self.limits.max_input_tokens:
            raise TooLong(f"`inputs` must have at most {self.limits.max_input_tokens} tokens, given {inputs}")

    async def _grammar(self, make: Callable[[], Grammar]) -> Grammar:
        if self._settings.disable_grammar_support:
            raise InvalidRequest("`grammar` is not supported")
        grammar = await self.in_thread(make)
        await self._grammars.check(grammar)
        return grammar
