"""Calls found in text while it arrives: the same however it is cut, nothing lost, in linear time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.protocols.tool_call_parser import ArgumentsPiece, CallEnded, CallStarted, Content, ToolCallParser, ToolEvent
from common.tool_format import FORMATS, HERMES, LLAMA, MISTRAL, MISTRAL_ARGS, ToolFormat

Whole = str | tuple[str, str]
"""Content, or a call: name and arguments."""


def parse(form: ToolFormat, pieces: Iterable[str]) -> list[Whole]:
    """All events, with contents and arguments put together; checks that they are in order."""
    parser = ToolCallParser(form, lambda index: f"call_{index}")
    events: list[ToolEvent] = [event for piece in pieces for event in parser.feed(piece)]
    events += parser.end()
    found: list[Whole] = []
    calls, is_open = 0, False
    for event in events:
        match event:
            case Content(text):
                assert text
                if found and isinstance(before := found[-1], str):
                    found[-1] = before + text
                else:
                    found.append(text)
                is_open = False
            case CallStarted(index, call_id, name):
                assert (index, call_id) == (calls, f"call_{calls}")
                calls, is_open = calls + 1, True
                found.append((name, ""))
            case ArgumentsPiece(index, text):
                assert text
                assert index == calls - 1
                assert is_open
                found.append(_longer(found.pop(), text))
            case CallEnded(index):
                assert index == calls - 1
                assert is_open
                is_open = False
    assert parser.called == (calls > 0)
    return found


def _longer(call: Whole, text: str) -> Whole:
    assert isinstance(call, tuple)
    return call[0], call[1] + text


ROME = '{"city": "Rome"}'
H = f'<tool_call>\n{{"name": "f", "arguments": {ROME}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (HERMES, "", []),
        (HERMES, "Just words. ", ["Just words. "]),
        (HERMES, H, [("f", ROME)]),
        (HERMES, f"\n {H}\n", [("f", ROME)]),
        (HERMES, f"Let me see.\n\n{H}", ["Let me see.", ("f", ROME)]),
        (HERMES, f"{H}\n{H}", [("f", ROME), ("f", ROME)]),
        (HERMES, f"{H} Done.", [("f", ROME), "Done."]),
        (HERMES, f"{H} then {H}", [("f", ROME), "then", ("f", ROME)]),
        (HERMES, '<tool_call>{"name":"f","arguments":{}}</tool_call>', [("f", "{}")]),
        (HERMES, f"<<tool_call>{H}", ["<<tool_call>", ("f", ROME)]),
        (HERMES, '<tool_call>{"name": "f", "arguments": 5}', ['<tool_call>{"name": "f", "arguments": 5}']),
        (HERMES, '<tool_call>{"name": "f"', ['<tool_call>{"name": "f"']),
        (HERMES, '<tool_call>{"name": "f g", "arguments": {}}', ['<tool_call>{"name": "f g", "arguments": {}}']),
        (HERMES, "a <tool_call> b </tool_call>", ["a <tool_call> b </tool_call>"]),
        # Cut by a limit: within the arguments, behind them, within the next call.
        (HERMES, H[:-17], [("f", '{"city": "Rom')]),
        (HERMES, H[:-14], [("f", ROME)]),
        (HERMES, H[:-4], [("f", ROME)]),
        (HERMES, f'{H}\n<tool_call>\n{{"na', [("f", ROME), '<tool_call>\n{"na']),
        (HERMES, H.replace("}}", "}, oops}"), [("f", ROME), ", oops}\n</tool_call>"]),
        (LLAMA, '{"name": "f", "parameters": {"a": [1]}}', [("f", '{"a": [1]}')]),
        (LLAMA, '\n{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', [("f", "{}"), ("g", "{}")]),
        (LLAMA, '{"name": "f", "value": 1}', ['{"name": "f", "value": 1}']),
        (LLAMA, '{"na', ['{"na']),
        (LLAMA, 'So: {"name": "f", "parameters": {}}', ['So: {"name": "f", "parameters": {}}']),
        (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {}}]', [("f", "{}")]),
        (
            MISTRAL,
            '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name":"g","arguments":{}}]',
            [("f", "{}"), ("g", "{}")],
        ),
        (MISTRAL, "see [TOOL_CALLS] and [this]", ["see [TOOL_CALLS] and [this]"]),
        (MISTRAL_ARGS, "Hm.[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}", ["Hm.", ("f", "{}"), ("g", "{}")]),
    ],
)
def test_what_is_found(form: ToolFormat, text: str, expected: list[Whole]) -> None:
    assert parse(form, [text]) == expected
    assert parse(form, text) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        {"a": 'quote " and \\ and } { ] ['},
        {"a": {"b": [{"c": "</tool_call>"}, "<tool_call>", []]}},
        {"ünï": "🤗\u2028\n", "n": -1.5e10, "t": None},
        {},
    ],
)
def test_arguments_may_hold_anything(arguments: object) -> None:
    for ascii_only in (True, False):
        text = json.dumps(arguments, ensure_ascii=ascii_only)
        whole = f'<tool_call>{{"name": "f", "arguments": {text}}}</tool_call>'
        assert parse(HERMES, whole) == [("f", text)]


def test_special_tokens_mark_calls_and_say_nothing_else() -> None:
    parser = ToolCallParser(MISTRAL, lambda index: f"call_{index}")
    assert parser.feed("<unk>", special=True) == []
    assert parser.feed("[TOOL_CALLS]", special=True) == []
    assert parser.feed(' [{"name": "f", "arguments": {}}]') == [
        CallStarted(0, "call_0", "f"),
        ArgumentsPiece(0, "{}"),
        CallEnded(0),
    ]
    assert parser.feed("</s>", special=True) == []
    assert parser.end() == []


def test_a_special_token_breaks_a_marker() -> None:
    parser = ToolCallParser(HERMES, str)
    assert parser.feed("<tool") == []
    assert parser.feed("<unk>", special=True) == [Content("<tool")]
    assert parser.feed('_call>{"name": "f", "arguments": {}}') == [Content('_call>{"name": "f", "arguments": {}}')]


def test_plain_text_is_not_held_back() -> None:
    parser = ToolCallParser(HERMES, str)
    assert parser.feed("Hello") == [Content("Hello")]
    assert parser.feed(" 1 < 2") == [Content(" 1 < 2")]
    assert parser.feed(" <") == []
    assert parser.feed("b>") == [Content(" <b>")]
    assert parser.feed("\n") == []
    assert parser.end() == [Content("\n")]


def test_arguments_are_not_held_back() -> None:
    parser = ToolCallParser(HERMES, str)
    assert parser.feed('<tool_call>{"name": "f", "arguments": ') == []
    assert parser.feed('{"city"') == [CallStarted(0, "0", "f"), ArgumentsPiece(0, '{"city"')]
    assert parser.feed(': "Ro') == [ArgumentsPiece(0, ': "Ro')]
    assert parser.feed('me"}') == [ArgumentsPiece(0, 'me"}'), CallEnded(0)]


FRAGMENTS = [
    *(piece for form in FORMATS.values() for piece in (form.marker, form.prelude) if piece),
    *('<tool_call>{"name": "f", "arguments": {', '{"name": "f", "parameters": {"a": 1}}', "}\n</tool_call>", "[ARGS]"),
    *('[TOOL_CALLS] [{"name": "f", "arguments": {}}', ', {"name": "g", "arguments": {"b": "\\""}}', "]", "; "),
    *(
        H,
        "</tool_call>",
        '"name": "',
        '", "arguments": ',
        '"',
        "\\",
        "{",
        "}",
        "<",
        "[",
        ":",
        "f",
        " ",
        "\n",
        "        ",
    ),
]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(list(FORMATS.values())),
    st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=3)), max_size=12),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_the_same_however_the_text_is_cut(form: ToolFormat, fragments: list[str], cuts: list[int]) -> None:
    text = "".join(fragments)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:stop] for start, stop in pairwise(places)]
    whole = parse(form, [text])
    assert parse(form, pieces) == whole
    assert parse(form, text) == whole
    if not any(isinstance(each, tuple) for each in whole):
        assert "".join(map(str, whole)) == text


HALF_OPEN = [
    *(
        "<tool_c",
        "<tool_call>",
        "<tool_call>\n",
        '<tool_call>\n{"name"',
        '<tool_call>{"name": "f", "arguments": ',
        "<",
        " ",
    ),
    *(
        "[TOOL_CALLS]",
        "[TOOL_CALLS] [",
        '[TOOL_CALLS] [{"name": "f',
        "[TOOL_CALLS]f[ARGS]",
        '{"name": "',
        "{",
        "\n\n\n",
    ),
]


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("unit", HALF_OPEN)
def test_half_open_markers_cost_milliseconds(form: ToolFormat, unit: str) -> None:
    text = (unit * 500_000)[:500_000]
    seconds = []
    for _ in range(3):
        parser = ToolCallParser(form, str)
        begin = time.process_time()
        events = parser.feed(text) + parser.end()
        seconds.append(time.process_time() - begin)
        is_content = "".join(event.text for event in events if isinstance(event, Content)) == text
        assert is_content
    assert min(seconds) < 0.1


def test_cuts_cost_little() -> None:
    """Nothing is read again and again: ten times the pieces cost ten times as much, not a hundred times."""

    def seconds(size: int) -> float:
        parser = ToolCallParser(HERMES, str)
        begin = time.process_time()
        for _ in range(size // 7):
            parser.feed("<tool_c")
        return time.process_time() - begin

    few = min(seconds(20_000) for _ in range(3))
    assert seconds(200_000) < 40 * few
