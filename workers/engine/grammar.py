"""Grammars while they run: compiled beside the steps, kept for the next request, one state per sequence."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from common.errors import GenerationFailed, InvalidRequest, TgqError
from common.grammar import Grammar
from common.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

log = logging.getLogger(__name__)

COMPILE_SECONDS = 10.0
"""Longest wait for a grammar; web processes refuse those that take half of it."""
_KEPT = 64
"""Compiled grammars in memory."""


@dataclass(slots=True, eq=False)
class _Compiled:
    """A grammar and the matcher at its start, once it is compiled."""

    matcher: Future[llguidance.LLMatcher]
    spoiled: bool = False
    """A limit was reached. Copies of a matcher share what the automaton has seen, so a new one is made for the next."""


class Grammars:
    """Compiles the grammars of one model's requests, each once, in a thread of its own.

    llguidance releases Python's lock while it compiles and while it fills masks: a large grammar does not stop the steps
    of other requests.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """
        Args:
            vocab_size: width of the model's logits.
        """
        self._vocab_size = vocab_size
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._compiled: OrderedDict[Grammar, _Compiled] = OrderedDict()
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._refusal = "this model has no end-of-text token"
        eos = sorted(token_id for token_id in tokenizer.eos_ids if token_id < vocab_size)
        if not eos:
            return
        try:
            import llguidance
        except ImportError:
            self._refusal = "llguidance is not installed"
            return
        width = max(vocab_size, tokenizer.vocab_size)
        try:
            self._tokenizer = llguidance.LLTokenizer(tokenizer.to_json(), n_vocab=width, eos_token=eos)
        except ValueError as error:
            log.warning("grammars are refused: %s", error)
            self._refusal = "this model's tokenizer is of a kind that grammars do not work with"

    def start(self, grammar: Grammar, *, ignore_eos: bool = False) -> GrammarState:
        """The state of one sequence before its first token; it may not be `ready` yet.

        Args:
            ignore_eos: end-of-text is allowed only where nothing else is.

        Raises:
            InvalidRequest: the model takes no grammars.
        """
        if self._tokenizer is None:
            raise InvalidRequest(f"`grammar` is not supported: {self._refusal}")
        from common.grammar_compiler import compile_grammar

        compiled = self._compiled.get(grammar)
        if compiled is None or compiled.spoiled:
            compiled = _Compiled(self._thread.submit(compile_grammar, grammar, self._tokenizer))
            self._compiled[grammar] = compiled
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        eos = self._tokenizer.eos_tokens if ignore_eos else []
        return GrammarState(compiled, self._tokenizer.vocab_size, self._vocab_size, eos)

    def prefetch(self, states: list[GrammarState]) -> None:
        """Fill, beside the forward of a step, the masks that will be asked for behind it."""
        if states:
            filled = self._thread.submit(_fill, states)
            for state in states:
                state.filled = filled

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class GrammarState:
    """Where one sequence is in its grammar: a function of the grammar and the generated ids.

    The grammar fails closed: a matcher in error allows nothing and ends the request.
    """

    def __init__(self, compiled: _Compiled, width: int, vocab_size: int, unwanted: list[int]) -> None:
        """
        Args:
            width: of the matcher's masks; `vocab_size` or more.
            unwanted: ids that are allowed only where no others are.
        """
        self._compiled = compiled
        self._vocab_size = vocab_size
        self._generated: list[int] = []
        """Ids that the matcher has not been told of."""
        self._unwanted = unwanted
        self._matcher: llguidance.LLMatcher | None = None
        self._bits = np.zeros((width + 31) // 32, dtype=np.uint32)
        self._is_filled = False
        self._lock = threading.Lock()
        self._until = time.monotonic() + COMPILE_SECONDS
        self.filled: Future[None] | None = None
        """The prefetch under way."""

    @property
    def ready(self) -> bool:
        """Whether `allowed` answers without waiting for the compiler, be it with an error."""
        return self._compiled.matcher.done() or time.monotonic() > self._until

    def advance(self, token_id: int) -> None:
        """Take the next token of the sequence; `allowed` tells whether the grammar lets it pass."""
        self._generated.append(token_id)
        self._is_filled = False

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Which tokens may come next, `[vocabulary]`, at least one of them; end-of-text where the grammar may end.

        Raises:
            InvalidRequest: the grammar cannot be compiled.
            GenerationFailed: it takes too long, it reached a limit, or the tokens so far do not match it.
        """
        if self.filled is not None and not self.filled.cancel():
            self.filled.result()
        self.filled = None
        self.fill()
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: self._vocab_size].view(np.bool_)
        if self._unwanted:
            others = allowed.copy()
            others[self._unwanted] = False
            allowed = others if others.any() else allowed
        if not allowed.any():
            raise GenerationFailed("the grammar allows no token")
        return allowed

    def fill(self) -> None:
        """Compute the mask unless it is there."""
        with self._lock:
            if not self._is_filled:
                self._fill()
                self._is_filled = True

    def _fill(self) -> None:
        if self._matcher is None:
            if not self._compiled.matcher.done():
                raise GenerationFailed(f"the grammar takes more than {COMPILE_SECONDS:g} seconds to compile")
            self._matcher = self._compiled.matcher.result().deep_copy()
        generated, self._generated = self._generated, []
        if not self._matcher.consume_tokens(generated):
            self._fail(self._matcher, "the tokens so far do not match the grammar")
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error():
            self._fail(self._matcher, "the grammar is too complex")

    def _fail(self, matcher: llguidance.LLMatcher, reason: str) -> NoReturn:
        self._compiled.spoiled = True
        # The matcher's own words may quote what was generated.
        raise GenerationFailed(f"{reason} ({matcher.stop_reason()})")


def _fill(states: list[GrammarState]) -> None:
    for state in states:
        # Whoever asks for the mask meets the error.
        with contextlib.suppress(TgqError):
            state.fill()
