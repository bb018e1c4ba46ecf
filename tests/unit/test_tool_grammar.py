"""Grammars of answers with calls, run by llguidance: what they let pass, and that the parser finds the same calls."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import llguidance
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from common.errors import InvalidRequest
from common.grammar import Grammar
from common.grammar_compiler import byte_tokenizer, compile_grammar
from common.grammar_process import check_grammar
from common.protocols.tool_call_parser import CallEnded, CallStarted, ToolCallParser
from common.protocols.tools import read_tools
from common.tool_format import FORMATS, ToolFormat
from common.tool_grammar import lark, read_calls

ONE = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"city": "Rome"}}\n</tool_call>',
    "llama": '{"name": "f", "parameters": {"city": "Rome"}}',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"city": "Rome"}}]',
    "mistral_args": '[TOOL_CALLS]f[ARGS]{"city": "Rome"}',
}
"""One call in each format, as models write it."""
TWO = {
    "hermes": ONE["hermes"] + "\n" + ONE["hermes"].replace("f", "g").replace('"city": "Rome"', '"n": 1'),
    "llama": ONE["llama"] + '; {"name": "g", "parameters": {"n": 1}}',
    "mistral": ONE["mistral"][:-1] + ', {"name": "g", "arguments": {"n": 1}}]',
    "mistral_args": ONE["mistral_args"] + '[TOOL_CALLS]g[ARGS]{"n": 1}',
}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("f", city={"type": "string"}), tool("g", n={"type": "integer"}), tool("fg")]


def grammar(form: ToolFormat, choice: str = "auto", *, parallel: bool = True) -> Grammar:
    use = read_tools(TOOLS, choice, parallel=parallel)
    assert use is not None
    return use.grammar(form)


@cache
def tokenizer(*, marked: bool) -> Tokenizer:
    """Tokens that span what a grammar has between its lexemes; markers are tokens of their own or not."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    texts = [*ONE.values(), *TWO.values(), "Some words, <b>and</b> {more} [of them].\n"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet))
    made.add_special_tokens(["<end>"])
    if marked:
        made.add_special_tokens(["[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"])
        made.add_tokens([AddedToken(text, special=False) for text in ("<tool_call>", "</tool_call>", "<think>")])
    return made


@cache
def matcher(of: Grammar, *, marked: bool) -> llguidance.LLMatcher:
    made = tokenizer(marked=marked)
    end = made.token_to_id("<end>")
    assert end is not None
    return compile_grammar(of, llguidance.LLTokenizer(made.to_str(), n_vocab=made.get_vocab_size(), eos_token=[end]))


def passes(of: Grammar, text: str, *, marked: bool, spelled: bool = False) -> bool:
    """Whether the grammar lets the text pass as a whole answer.

    Args:
        spelled: markers in the text are spelled out, not tokens.
    """
    state = matcher(of, marked=marked).deep_copy()
    ids = tokenizer(marked=marked and not spelled).encode(text, add_special_tokens=False).ids
    return state.validate_tokens(ids) == len(ids) and state.consume_tokens(ids) and state.is_accepting()


FORMS = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
MARKED = pytest.mark.parametrize("marked", [False, True], ids=["text", "tokens"])


@FORMS
@MARKED
def test_the_model_may_call_or_not(form: ToolFormat, marked: bool) -> None:
    auto = grammar(form)
    for text in (
        "",
        "Some words, <b>and</b> {more} [of them].",
        "{",
        '{"a": 1}',
        "[",
        "<tool",
        ONE[form.name],
        TWO[form.name],
    ):
        assert passes(auto, text, marked=marked), text
    if form.marker:
        assert passes(auto, f"Some words.\n\n{ONE[form.name]}", marked=marked)
    assert passes(auto, "<think>\nHm.", marked=marked)


@FORMS
@MARKED
def test_it_must_call(form: ToolFormat, marked: bool) -> None:
    required = grammar(form, "required")
    assert passes(required, ONE[form.name], marked=marked)
    assert passes(required, TWO[form.name], marked=marked)
    for text in ("", "Some words", f"Some words{ONE[form.name]}", f"{ONE[form.name]} words"):
        assert not passes(required, text, marked=marked), text


@FORMS
@MARKED
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_arguments_match_their_schema_whenever_a_call_is_made(form: ToolFormat, marked: bool, choice: str) -> None:
    of = grammar(form, choice)
    for before, after in (
        ('"Rome"', "1"),
        ('"city": "Rome"', ""),
        ('"city": "Rome"', '"city": "Rome", "more": 1'),
        ('"f"', '"h"'),
        ('"f"', '"g"'),
        ('{"city"', '["city"'),
        ("[TOOL_CALLS]f", "[TOOL_CALLS]h"),
    ):
        wrong = ONE[form.name].replace(before, after)
        assert wrong == ONE[form.name] or not passes(of, wrong, marked=marked), wrong
    assert passes(of, ONE[form.name].replace("f", "fg").replace('"city": "Rome"', ""), marked=marked)


@FORMS
@MARKED
def test_one_call_only(form: ToolFormat, marked: bool) -> None:
    for of in (grammar(form, parallel=False), grammar(form, "required", parallel=False), grammar(form, "f")):
        assert passes(of, ONE[form.name], marked=marked)
        assert not passes(of, TWO[form.name], marked=marked)
    assert not passes(grammar(form, "g"), ONE[form.name], marked=marked)


@FORMS
def test_words_cannot_spell_a_call_where_markers_are_tokens(form: ToolFormat) -> None:
    """The parser would take it for one, with arguments that nothing held to their schema."""
    wrong = ONE[form.name].replace('"Rome"', "1")
    assert not passes(grammar(form), wrong, marked=True, spelled=True)
    assert not passes(grammar(form), f"\n {wrong}", marked=True, spelled=True)


@FORMS
def test_the_parser_finds_what_the_grammar_lets_pass(form: ToolFormat) -> None:
    for choice in ("auto", "required"):
        state = matcher(grammar(form, choice), marked=True).deep_copy()
        made = tokenizer(marked=True)
        parser = ToolCallParser(form, str)
        events = []
        for token_id in made.encode(TWO[form.name], add_special_tokens=False).ids:
            assert state.consume_tokens([token_id])
            special = token_id in (made.token_to_id("[TOOL_CALLS]"), made.token_to_id("[ARGS]"))
            events += parser.feed(made.decode([token_id], skip_special_tokens=False), special=special)
        events += parser.end()
        assert [event for event in events if isinstance(event, CallStarted | CallEnded)] == [
            CallStarted(0, "0", "f"),
            CallEnded(0),
            CallStarted(1, "1", "g"),
            CallEnded(1),
        ]


def test_the_prelude_is_a_token_or_nothing() -> None:
    form = FORMATS["llama"]
    for choice in ("auto", "required"):
        assert passes(grammar(form, choice), "<|python_tag|>" + ONE["llama"], marked=True)
    assert not passes(grammar(form, "required"), "<|python_tag|>" + ONE["llama"], marked=False)


# -- checked before anything is queued ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"properties": {"x": {"type": "float"}}}, r"it is no JSON Schema: .* at `/properties/x/type`"),
        ({"properties": {"x": {"uniqueItems": True}}}, ".*uniqueItems"),
        ({"properties": {"x": {"pattern": "(?=a)"}}}, "."),
        ({"properties": {"x": {"$ref": "#/nowhere"}}}, "."),
        ({"properties": {"x": {"x-guidance": {"lenient": True}}}}, "`x-guidance` is not supported"),
    ],
)
def test_a_schema_that_cannot_be_used_names_its_tool(parameters: dict[str, Any], reason: str) -> None:
    broken = {"type": "function", "function": {"name": "h", "parameters": parameters}}
    use = read_tools([*TOOLS, broken])
    assert use is not None
    with pytest.raises(InvalidRequest, match=r"`tools\.3\.function\.parameters` is not valid: " + reason):
        check_grammar(use.grammar(FORMATS["hermes"]), byte_tokenizer())


@FORMS
def test_128_tools_are_not_too_many(form: ToolFormat) -> None:
    fields = {f"field_{place}": {"type": "string", "description": "x" * 50} for place in range(8)}
    use = read_tools([tool(f"function_{place}", **fields) for place in range(128)])
    assert use is not None
    compile_grammar(use.grammar(form), byte_tokenizer())


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"format":"unheard of","functions":[[0,"f",{}]],"required":true,"parallel":true}',
        '{"format":"hermes","functions":[["f"]],"required":true,"parallel":true}',
        '{"format":"hermes","functions":[],"required":true,"parallel":true}',
    ],
)
def test_a_job_from_elsewhere_may_be_wrong(text: str) -> None:
    with pytest.raises(InvalidRequest, match="`grammar` is not valid"):
        compile_grammar(Grammar("tools", text), byte_tokenizer())


def test_names_are_quoted() -> None:
    calls = {"format": "hermes", "functions": [[0, '"\n| "x', {}]], "required": True, "parallel": True}
    compile_grammar(Grammar("tools", json.dumps(calls)), byte_tokenizer())
    assert "\\n" in lark(read_calls(json.dumps(calls)), lambda text: None, [], {})
