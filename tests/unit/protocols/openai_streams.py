"""Streams of OpenAI's API put together again, to be compared with whole answers; and token events to make both of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from common.protocols.openai_answer import Head
from common.wire import Finish, FinishReason, PrefillToken, Token, Tokens, TopToken

HEAD = Head("id-1", 1_700_000_000, "a/model", "2.2.1-dev0-native")
PIECES = ["a", " b", "", "é", "🤗", "STOP", "ST", "OP", " \n", "\u2028", '{"x":', "<tool_call>", "</tool_call>"]


def chunks(payloads: Sequence[bytes]) -> list[dict[str, Any]]:
    return [json.loads(payload) for payload in payloads]


def join_chat(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """The body that the chunks come to; checks what every stream must keep to."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in stream:
        assert (chunk["id"], chunk["created"], chunk["model"]) == (HEAD.id, HEAD.created, HEAD.model)
        assert chunk["object"] == "chat.completion.chunk"
        if not chunk["choices"]:
            assert chunk is stream[-1]
            usage = chunk["usage"]
            continue
        (part,) = chunk["choices"]
        delta = part["delta"]
        choice = choices.get(part["index"])
        if choice is None:
            assert delta["role"] == "assistant"
            choice = choices[part["index"]] = {"content": delta["content"], "calls": [], "logprobs": [], "end": None}
            continue
        assert "role" not in delta
        assert choice["end"] is None, "a chunk behind the finish"
        if delta.get("content") is not None:
            choice["content"] = (choice["content"] or "") + delta["content"]
        for call in delta.get("tool_calls", ()):
            _join_call(choice["calls"], call)
        choice["logprobs"] += (part["logprobs"] or {"content": []})["content"]
        if part["finish_reason"] is not None:
            assert delta == {}
            choice["end"] = (part["finish_reason"], part["stop_reason"])
        else:
            assert "stop_reason" not in part
    return {"choices": [choices[index] for index in sorted(choices)], "usage": usage}


def _join_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    if "id" in delta:
        assert delta["index"] == len(calls)
        assert delta["type"] == "function"
        calls.append({"id": delta["id"], "name": delta["function"]["name"], "arguments": ""})
    calls[delta["index"]]["arguments"] += delta["function"]["arguments"]


def plain_chat(body: dict[str, Any]) -> dict[str, Any]:
    """A whole answer in the words of `join_chat`."""
    return {
        "choices": [
            {
                "content": choice["message"]["content"],
                "calls": [{"id": call["id"], **call["function"]} for call in choice["message"].get("tool_calls", ())],
                "logprobs": (choice["logprobs"] or {"content": []})["content"],
                "end": (choice["finish_reason"], choice["stop_reason"]),
            }
            for choice in body["choices"]
        ],
        "usage": body["usage"],
    }


LOGPROBS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def join_completion(stream: list[dict[str, Any]]) -> dict[str, Any]:
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in stream:
        assert chunk["object"] == "text_completion"
        if not chunk["choices"]:
            assert chunk is stream[-1]
            usage = chunk["usage"]
            continue
        (part,) = chunk["choices"]
        choice = choices.setdefault(part["index"], {"text": "", "logprobs": None, "end": None})
        assert choice["end"] is None, "a chunk behind the finish"
        choice["text"] += part["text"]
        if part["logprobs"] is not None:
            joined = choice["logprobs"] or {name: [] for name in LOGPROBS}
            choice["logprobs"] = {name: joined[name] + part["logprobs"][name] for name in LOGPROBS}
        if part["finish_reason"] is not None:
            assert part["text"] == ""
            choice["end"] = (part["finish_reason"], part["stop_reason"])
    return {"choices": [choices[index] for index in sorted(choices)], "usage": usage}


def plain_completion(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "choices": [
            {
                "text": choice["text"],
                "logprobs": choice["logprobs"],
                "end": (choice["finish_reason"], choice["stop_reason"]),
            }
            for choice in body["choices"]
        ],
        "usage": body["usage"],
    }


Said = tuple[list[Token], FinishReason, str | None]
"""One sequence as an engine may say it, with the reason of its end and the stop string."""


@st.composite
def sequences(draw: st.DrawFn) -> Said:
    token = st.builds(
        Token,
        st.integers(0, 999),
        st.sampled_from(PIECES),
        st.one_of(st.none(), st.floats(-30, 0)),
        st.just(False),
        st.lists(
            st.builds(TopToken, st.integers(0, 999), st.sampled_from(PIECES), st.floats(-30, 0), st.just(False)),
            max_size=3,
        ),
    )
    tokens = draw(st.lists(token, min_size=1, max_size=8))
    reason: FinishReason = draw(st.sampled_from(["length", "eos_token", "stop_sequence"]))
    stop = None
    if reason == "eos_token":
        tokens.append(Token(2, "</s>", -0.5, True))
    if reason == "stop_sequence" and (stop := draw(st.sampled_from([None, "STOP"]))):
        tokens[-1] = msgspec.structs.replace(tokens[-1], text=tokens[-1].text + stop)
    return tokens, reason, stop


CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Rome \u00e9"}}\n</tool_call>'


@st.composite
def calling(draw: st.DrawFn) -> Said:
    """A sequence with calls, or almost, cut into tokens at will."""
    parts = st.sampled_from([CALL, "\n", "words ", "<tool_call>", '{"name": "get', "</tool_call>", "{}"])
    text = "".join(draw(st.lists(parts, min_size=1, max_size=5)))
    cuts = sorted(draw(st.sets(st.integers(1, len(text)), max_size=12)) - {len(text)})
    ends = zip([0, *cuts], [*cuts, len(text)], strict=True)
    tokens = [Token(place, text[start:end], -0.5, False) for place, (start, end) in enumerate(ends)]
    reason: FinishReason = draw(st.sampled_from(["length", "eos_token"]))
    return [*tokens, Token(2, "</s>", -0.5, True)], reason, None


@st.composite
def events(draw: st.DrawFn, children: int, of: st.SearchStrategy[Said] | None = None) -> list[Tokens]:
    """Several sequences as steps report them: grouped at will, interleaved at will."""
    queues = []
    for child in range(children):
        tokens, reason, stop = draw(sequences() if of is None else of)
        cuts = sorted(draw(st.sets(st.integers(1, max(1, len(tokens) - 1)), max_size=4)) - {len(tokens)})
        groups = [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
        prefill = [PrefillToken(7, "p", None), PrefillToken(8, "q", -1.5)] if child == 0 else []
        finish = Finish(reason, len(tokens), 0.1, stop, prefill)
        queues.append(
            [
                Tokens(sum(map(len, groups[:index])), group, finish if index == len(groups) - 1 else None, child)
                for index, group in enumerate(groups)
            ]
        )
    merged: list[Tokens] = []
    unfinished = children
    while any(queues):
        queue = queues[draw(st.sampled_from([index for index, queue in enumerate(queues) if queue]))]
        event = queue.pop(0)
        unfinished -= event.finish is not None
        merged.append(msgspec.structs.replace(event, unfinished=unfinished))
    ends = [event for event in merged if event.finish is not None]
    if children > 1 and draw(st.booleans()):
        # After a failover the request may end with a child that had ended before.
        merged[-1] = msgspec.structs.replace(merged[-1], unfinished=1)
        merged.append(msgspec.structs.replace(ends[0], tokens=[], unfinished=0))
    return merged
