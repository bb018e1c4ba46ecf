"""Compiles grammars with llguidance, within limits. Imported where grammars are compiled, not by the web process itself.

llguidance walks its automaton lazily and counts what it does, so that every step of every grammar ends: a compile takes
a millisecond for a usual schema, and one that reaches a limit is an error. It reports the keywords of JSON Schema that it
cannot enforce, and they are refused: an answer is never less than what was asked for. Keys that are no keywords are
annotations, as the standard has it.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

import llguidance

from common.ascii_classes import ascii_classes
from common.closed_objects import close_objects
from common.errors import InvalidRequest
from common.grammar import Grammar, grammar_error
from common.tool_grammar import lark, read_calls

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

WHITESPACE = "[ ]?"
"""Between the tokens of JSON: one space or nothing, so that no answer can be blank without end. Outlines' choice, and TGI's."""
_LONGEST_REASON = 300
_JSON_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": True,
    "whitespace_pattern": WHITESPACE,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
}


def parser_limits() -> llguidance.LLParserLimits:
    """Bounds of time and memory; the defaults are two to ten times as large."""
    return llguidance.LLParserLimits(
        max_items_in_row=1_000,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_lexer_states=20_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def compile_grammar(
    grammar: Grammar, tokenizer: llguidance.LLTokenizer, field: str = "grammar"
) -> llguidance.LLMatcher:
    """A matcher at the start of the answer, whose first step works. Does not hold the GIL while it compiles.

    Args:
        grammar: its size is not checked here.
        tokenizer: `byte_tokenizer()` will do where only validity matters.
        field: what errors call it.

    Raises:
        InvalidRequest: why the grammar cannot be used.
    """
    source = _source(grammar, tokenizer, field)
    matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=parser_limits())
    if matcher.is_error():
        raise _refused(matcher, field)
    trial = matcher.deep_copy()
    mask = ctypes.create_string_buffer(mask_bytes(tokenizer.vocab_size))
    trial.unsafe_compute_mask_ptr(ctypes.addressof(mask), len(mask))
    if trial.is_error():
        raise _refused(trial, field)
    if not any(mask.raw):
        raise grammar_error("nothing can match it", field)
    return matcher


def _source(grammar: Grammar, tokenizer: llguidance.LLTokenizer, field: str) -> str:
    if grammar.kind == "regex":
        return llguidance.LLMatcher.grammar_from_regex(ascii_classes(grammar.text))
    if '"x-guidance"' in grammar.text:
        raise grammar_error("`x-guidance` is not supported", field)
    if grammar.kind == "json":
        return llguidance.LLMatcher.grammar_from_json_schema(close_objects(grammar.text), overrides=_JSON_OPTIONS)
    try:
        calls = read_calls(grammar.text)
    except ValueError as error:
        raise grammar_error(str(error)) from None
    return llguidance.LLMatcher.grammar_from_lark(
        lark(calls, lambda text: _special_token(tokenizer, text), _special_tokens(tokenizer), _JSON_OPTIONS)
    )


def _special_token(tokenizer: llguidance.LLTokenizer, text: str) -> int | None:
    ids = tokenizer.tokenize_str(text, parse_special=True)
    return ids[0] if len(ids) == 1 and tokenizer.is_special_token(ids[0]) else None


@functools.lru_cache(maxsize=4)
def _special_tokens(tokenizer: llguidance.LLTokenizer) -> list[int]:
    """All but end-of-text."""
    ends = set(tokenizer.eos_tokens)
    return [i for i in range(tokenizer.vocab_size) if tokenizer.is_special_token(i) and i not in ends]


def mask_bytes(vocab_size: int) -> int:
    """Bytes of a bit mask over a vocabulary; whole 32-bit words."""
    return (vocab_size + 31) // 32 * 4


def byte_tokenizer() -> llguidance.LLTokenizer:
    """A tokenizer that has a token for each byte."""
    return llguidance.LLTokenizer("byte")


def _refused(matcher: llguidance.LLMatcher, field: str) -> InvalidRequest:
    reason = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
    return grammar_error(reason if len(reason) <= _LONGEST_REASON else reason[:_LONGEST_REASON] + "...", field)
