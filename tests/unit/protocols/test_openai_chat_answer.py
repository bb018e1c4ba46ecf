from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.protocols.openai_answer import Stops, UsageReport
from common.protocols.openai_chat_answer import ChatAnswer, ChatFold
from common.tool_format import HERMES
from common.wire import Finish, Token, Tokens, TopToken
from tests.unit.protocols.openai_streams import CALL, HEAD, calling, chunks, events, join_chat, plain_chat

TOKENS = [Token(5, "Hé", -0.5, False), Token(6, "", -1.25, False), Token(2, "</s>", -0.125, True)]
FINISH = Finish("eos_token", 3, 0.5)


def answer(**changes: Any) -> ChatAnswer:
    return msgspec.structs.replace(ChatAnswer(head=HEAD, choices=1, prompt_tokens=4, stops=Stops([])), **changes)


def stream(asked: ChatAnswer, *steps: Tokens) -> list[dict[str, Any]]:
    fold = ChatFold(asked)
    return chunks([payload for step in steps for payload in fold.stream_events(step)])


def body(asked: ChatAnswer, *steps: Tokens) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(ChatFold(asked).body(steps))
    return decoded


def test_the_body_is_openais() -> None:
    assert body(answer(), Tokens(0, TOKENS, FINISH)) == {
        "id": "id-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "a/model",
        "system_fingerprint": "2.2.1-dev0-native",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hé", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7},
    }


def test_a_stream_has_one_role_chunk_and_one_finish_chunk() -> None:
    role, text, end = stream(answer(), Tokens(0, TOKENS[:2]), Tokens(2, TOKENS[2:], FINISH))
    assert role["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert text["choices"] == [{"index": 0, "delta": {"content": "Hé"}, "logprobs": None, "finish_reason": None}]
    assert end["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": None}]
    assert all("usage" not in chunk for chunk in (role, text, end))


def test_usage_comes_at_the_end_or_all_along() -> None:
    steps = [Tokens(0, TOKENS[:1]), Tokens(1, TOKENS[1:], FINISH)]
    *others, last = stream(answer(usage=UsageReport(at_end=True)), *steps)
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
    assert all(chunk["usage"] is None for chunk in others)
    running = stream(answer(usage=UsageReport(always=True)), *steps)
    assert [chunk["usage"]["completion_tokens"] for chunk in running] == [0, 1, 3]


@pytest.mark.parametrize(
    ("tokens", "reason", "stop", "content", "end"),
    [
        (["one ", "twoSTOP"], "stop_sequence", "STOP", "one two", ("stop", "STOP")),
        (["STOP"], "stop_sequence", "STOP", "", ("stop", "STOP")),
        (["a", "b"], "length", None, "ab", ("length", None)),
        # The limit came first for the engine; for the caller the answer is stopped.
        (["a", "bEND and STOP"], "length", None, "ab", ("stop", "END")),
        (["a", "b"], "stop_sequence", None, "ab", ("stop", 101)),
    ],
)
def test_stop_strings_are_no_part_of_the_answer(
    tokens: list[str], reason: Any, stop: str | None, content: str, end: tuple[str, str | int | None]
) -> None:
    said = [Token(100 + index, text, -1.0, False) for index, text in enumerate(tokens)]
    event = Tokens(0, said, Finish(reason, len(said), 0.1, stop))
    asked = answer(stops=Stops(["STOP", "END"]))
    (choice,) = body(asked, event)["choices"]
    assert (choice["message"]["content"], (choice["finish_reason"], choice["stop_reason"])) == (content, end)
    assert join_chat(stream(asked, event))["choices"][0]["content"] == content


def test_stop_strings_are_kept_when_wanted() -> None:
    event = Tokens(0, [Token(5, "twoSTOP", -1.0, False)], Finish("stop_sequence", 1, 0.1, "STOP"))
    (choice,) = body(answer(stops=Stops(["STOP"], kept=True)), event)["choices"]
    assert choice["message"]["content"] == "twoSTOP"
    cut = Tokens(0, [Token(5, "twoSTOP!", -1.0, False)], Finish("length", 1, 0.1))
    (choice,) = body(answer(stops=Stops(["STOP"], kept=True)), cut)["choices"]
    assert choice["message"]["content"] == "twoSTOP"


def test_a_stop_string_that_a_special_token_completes() -> None:
    tokens = [Token(5, "one.", -1.0, False), Token(2, "</s>", -1.0, True)]
    event = Tokens(0, tokens, Finish("stop_sequence", 2, 0.1, ".</s"))
    (choice,) = body(answer(stops=Stops([".</s"])), event)["choices"]
    assert choice["message"]["content"] == "one"


def test_logprobs_have_an_entry_for_each_token() -> None:
    top = [TopToken(5, "é", -0.5, False), TopToken(9, "b", None, False), TopToken(8, "c", -3.0, False)]
    tokens = [Token(5, "é", -0.5, False, top), Token(6, "", None, False, top)]
    event = Tokens(0, tokens, Finish("length", 2, 0.1))
    (choice,) = body(answer(top_logprobs=2), event)["choices"]
    assert choice["logprobs"] == {
        "content": [
            {
                "token": "é",
                "logprob": -0.5,
                "bytes": [195, 169],
                "top_logprobs": [
                    {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
                    {"token": "b", "logprob": -9999.0, "bytes": [98]},
                ],
            },
            {
                "token": "",
                "logprob": -9999.0,
                "bytes": [],
                "top_logprobs": [
                    {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
                    {"token": "b", "logprob": -9999.0, "bytes": [98]},
                ],
            },
        ],
        "refusal": None,
    }
    assert [
        len(chunk["choices"][0]["logprobs"]["content"]) for chunk in stream(answer(top_logprobs=0), event)[1:3]
    ] == [
        1,
        1,
    ]


def test_a_sequence_without_an_end_has_no_body() -> None:
    with pytest.raises(ValueError, match="without a finish"):
        body(answer(), Tokens(0, TOKENS))


@given(st.data())
def test_streamed_and_whole_answers_are_the_same(data: st.DataObject) -> None:
    children = data.draw(st.integers(1, 3))
    steps = data.draw(events(children))
    asked = answer(
        choices=children,
        stops=Stops(["STOP"], data.draw(st.booleans())),
        top_logprobs=data.draw(st.sampled_from([None, 0, 2])),
        usage=UsageReport(at_end=True, always=data.draw(st.booleans())),
    )
    assert join_chat(stream(asked, *steps)) == plain_chat(body(asked, *steps))


@given(st.data())
def test_streamed_and_whole_answers_with_calls_are_the_same(data: st.DataObject) -> None:
    children = data.draw(st.integers(1, 2))
    steps = data.draw(events(children, calling()))
    asked = answer(
        choices=children,
        tool_format=HERMES,
        call_key="key",
        top_logprobs=data.draw(st.sampled_from([None, 0])),
        usage=UsageReport(at_end=True),
    )
    found = plain_chat(body(asked, *steps))
    assert join_chat(stream(asked, *steps)) == found
    for place, choice in enumerate(found["choices"]):
        assert [call["id"] for call in choice["calls"]] == [
            f"call_key{place:02x}{n:02x}" for n in range(len(choice["calls"]))
        ]
        assert choice["content"] is not None or choice["calls"]


def test_calls_are_told_piece_by_piece() -> None:
    tokens = [Token(place, text, -1.0, False) for place, text in enumerate(["Hm. ", CALL[:40], CALL[40:], CALL])]
    said = stream(answer(tool_format=HERMES, call_key="k"), Tokens(0, tokens, Finish("eos_token", 4, 0.1)))
    role, text, *calls, end = [chunk["choices"][0] for chunk in said]
    assert role["delta"] == {"role": "assistant", "content": None}
    assert text["delta"] == {"content": "Hm."}
    assert calls[0]["delta"]["tool_calls"] == [
        {"index": 0, "id": "call_k0000", "type": "function", "function": {"name": "get_time", "arguments": ""}}
    ]
    assert all(
        set(call["delta"]["tool_calls"][0]) == {"index", "function"}
        for call in calls[1:]
        if call["delta"]["tool_calls"][0]["index"] == 0
    )
    assert [call["delta"]["tool_calls"][0]["index"] for call in calls][-1] == 1
    assert (end["delta"], end["finish_reason"]) == ({}, "tool_calls")


def test_calls_that_were_cut_end_with_length() -> None:
    event = Tokens(0, [Token(5, CALL[:-30], -1.0, False)], Finish("length", 1, 0.1))
    (choice,) = body(answer(tool_format=HERMES), event)["choices"]
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_time"
