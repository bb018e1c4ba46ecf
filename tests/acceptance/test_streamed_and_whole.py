"""Every route that generates says the same streamed and not: text, tokens, finish reason, usage.

The scripted model says text and tokens at will, broken characters and special tokens among them, cut by limits and stop
strings; or, at a high temperature, whatever the seed draws.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops.local_service import LocalService
from tests.acceptance.native import TIMEOUT, script
from tests.event_streams import data_of, openai_data
from tests.unit.protocols.openai_streams import join_chat, join_completion, plain_chat, plain_completion

EXAMPLES = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
CALL = '<tool_call>\n{"name": "clock", "arguments": {"place": "Zürich"}}\n</tool_call>'
CLOCK = {"name": "clock", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}
TOOLS = {"tools": [{"type": "function", "function": CLOCK}]}
FORMAT = {"type": "json", "value": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}}
Fields = dict[str, Any]

PIECES = ["a", " b", "é", "🤗", "STOP", "ST", "OP", " \n", "\u2028", '{"a": 1', "}", "<tool_call>", CALL, "<"]
STOPS = ["STOP", "b", "🤗", "TOP", "}", "zzz", "Zür", '"name"']
texts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map(lambda pieces: script("".join(pieces)))
prompts = st.one_of(
    texts,
    st.lists(st.one_of(st.integers(0, 40), st.integers(0, 49_000)), max_size=8).map(lambda ids: script(ids=ids)),
    st.just("Talk."),
)


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Fields]:
    """Some of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


SAMPLING = {
    "temperature": st.sampled_from([0.5, 1.0, 8.0]),
    "seed": st.integers(0, 9),
    "top_p": st.sampled_from([0.3, 0.9]),
    "top_k": st.integers(1, 50),
    "repetition_penalty": st.sampled_from([0.9, 1.5]),
    "frequency_penalty": st.sampled_from([-1.0, 1.0]),
}
stops = st.lists(st.sampled_from(STOPS), max_size=3)
native = optional(
    **SAMPLING, stop=stops, top_n_tokens=st.integers(1, 3), grammar=st.just(FORMAT), return_full_text=st.booleans()
)
openai = optional(
    **SAMPLING,
    stop=stops,
    include_stop_str_in_output=st.booleans(),
    ignore_eos=st.booleans(),
    stop_token_ids=st.lists(st.integers(0, 40), max_size=2),
    presence_penalty=st.sampled_from([-1.0, 1.0]),
    logit_bias=st.dictionaries(st.sampled_from(["2", "28", "365"]), st.sampled_from([-100, 100]), max_size=2),
)


@pytest.fixture(scope="module")
def http(scripted_service: LocalService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=scripted_service.url, timeout=TIMEOUT, trust_env=False) as client:
        yield client


def whole(http: httpx.Client, path: str, body: Fields) -> Any:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def streamed(http: httpx.Client, path: str, body: Fields, *, done: bool = False) -> list[Fields]:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream"
    return [json.loads(data) for data in (openai_data if done else data_of)(response.text)]


@EXAMPLES
@given(prompts, st.integers(1, 24), native, st.sampled_from(["/generate", "/", "/invocations"]))
def test_native(http: httpx.Client, prompt: str, limit: int, fields: Fields, path: str) -> None:
    fields = {"max_new_tokens": limit, "seed": 1, "do_sample": "temperature" in fields, **fields, "details": True}
    body = {"inputs": prompt, "parameters": fields}
    answer = whole(http, path, body)
    answer = answer[0] if path != "/generate" else answer
    stream = "/generate_stream" if path == "/generate" else path
    events = streamed(http, stream, {**body, "stream": True})
    details = answer["details"]
    assert [event["token"] for event in events] == details["tokens"]
    assert [event["index"] for event in events] == list(range(1, len(events) + 1))
    assert [event["generated_text"] for event in events] == [*[None] * (len(events) - 1), answer["generated_text"]]
    said = "".join(event["token"]["text"] for event in events if not event["token"]["special"])
    assert (prompt if fields.get("return_full_text") else "") + said == answer["generated_text"]
    if "top_n_tokens" in fields:
        assert [event["top_tokens"] for event in events] == details["top_tokens"]
    last = events[-1]["details"]
    assert {name: details[name] for name in ("finish_reason", "generated_tokens", "seed")} == {
        name: last[name] for name in ("finish_reason", "generated_tokens", "seed")
    }


@EXAMPLES
@given(prompts, st.integers(1, 24), native)
def test_open_inference(http: httpx.Client, prompt: str, limit: int, fields: Fields) -> None:
    fields = {"max_tokens": limit, "seed": 1, "do_sample": "temperature" in fields, **fields, "details": True}
    body = {"text_input": prompt, "parameters": fields}
    answer = whole(http, "/v2/models/scripted/generate", body)
    events = streamed(http, "/v2/models/scripted/versions/1/generate_stream", body)
    details, last = answer["details"], events[-1]["details"]
    assert [event["details"]["token"] for event in events] == details["logprobs"]
    assert "".join(event["text_output"] for event in events) == answer["text_output"]
    for name in ("finish_reason", "generated_tokens", "seed"):
        assert last[name] == details[name]


def both(http: httpx.Client, path: str, body: Fields) -> tuple[Fields, list[Fields]]:
    options = {"include_usage": True, "continuous_usage_stats": body["seed"] % 2 == 1}
    chunks = streamed(http, path, {**body, "stream": True, "stream_options": options}, done=True)
    used = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["usage"]]
    assert used == sorted(used)
    return whole(http, path, body), chunks


@EXAMPLES
@given(
    texts | prompts,
    st.integers(1, 40),
    openai,
    st.sampled_from([{}, TOOLS, TOOLS | {"tool_choice": "required"}, {"response_format": FORMAT}]),
    optional(n=st.integers(1, 3), top_logprobs=st.integers(0, 2)),
    st.sampled_from(["/v1/chat/completions", "/invocations"]),
)
def test_chat(
    http: httpx.Client, prompt: str, limit: int, fields: Fields, shape: Fields, others: Fields, path: str
) -> None:
    messages = [{"role": "user", "content": prompt}]
    body = {"messages": messages, "max_tokens": limit, "seed": 1, **fields, **shape, **others}
    if "top_logprobs" in others:
        body["logprobs"] = True
    answer, chunks = both(http, path, body)
    expected, joined = plain_chat(answer), join_chat(chunks)
    for choice in [*expected["choices"], *joined["choices"]]:
        choice["content"] = choice["content"] or ""
        for place, call in enumerate(choice["calls"]):
            assert call.pop("id").endswith(f"{place:02x}")
        if choice["end"][0] == "tool_calls":
            assert all(isinstance(json.loads(call["arguments"]), dict) for call in choice["calls"])
    assert joined == expected


@EXAMPLES
@given(
    st.lists(prompts, min_size=1, max_size=3),
    st.integers(1, 24),
    openai,
    optional(n=st.integers(1, 3), logprobs=st.integers(0, 2)) | st.just({"echo": True, "n": 2}),
    st.sampled_from(["/v1/completions", "/invocations"]),
)
def test_completions(
    http: httpx.Client, said: list[str], limit: int, fields: Fields, others: Fields, path: str
) -> None:
    body = {"prompt": said, "max_tokens": limit, "seed": 1, **fields, **others}
    answer, chunks = both(http, path, body)
    assert join_completion(chunks) == plain_completion(answer)
