r"""`\d`, `\w` and `\s` of a `regex` grammar mean ASCII."""

from __future__ import annotations

import llguidance
import pytest

from common.grammar import Grammar
from common.grammar_compiler import byte_tokenizer, compile_grammar


@pytest.fixture(scope="module")
def tokenizer() -> llguidance.LLTokenizer:
    return byte_tokenizer()


@pytest.mark.parametrize(
    ("expression", "taken", "refused"),
    [
        (r"\d", "7", "৫"),
        (r"\D", "৫", "7"),
        (r"\w", "_", "é"),
        (r"\W", "é", "a"),
        (r"\s", "\t", "\u00a0"),
        (r"\S", "\u00a0", " "),
        (r"[^\d]", "৫", "7"),
        (r"[x\D]", "é", "7"),
        (r"[\w.-]", "-", "é"),
        (r"[\d-x]", "-", "w"),
        (r"\\d", "\\d", "7"),
        (r"\\\d", "\\7", "\\d"),
        (r"\p{Nd}", "৫", "x"),
        (r"(?i)k\d", "K7", "K৫"),
    ],
)
def test_what_matches(tokenizer: llguidance.LLTokenizer, expression: str, taken: str, refused: str) -> None:
    grammar = Grammar("regex", expression)

    def matches(text: str) -> bool:
        matcher = compile_grammar(grammar, tokenizer)
        tokens = list(text.encode())
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    assert matches(taken)
    assert not matches(refused)
