"""Requests as clients put them on the wire that this suite does not install, replayed byte for byte but for the prompt.

The clients themselves are tried by `make clients`, in environments of their own. LiteLLM is not, because releases of it
have carried malware: its request is what its published source makes of a call with `api_base`.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from ops.local_service import LocalService
from tests.acceptance.native import TIMEOUT, parse_events, script

TEXT = "naïve 🤗 words"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
NULLS = dict.fromkeys(
    [
        "repetition_penalty",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "n",
        "presence_penalty",
        "seed",
        "top_p",
        "tools",
        "tool_prompt",
        "tool_choice",
        "stop",
    ]
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "get_weather(city: str) -> str\nThe weather now.",
        "parameters": {
            "properties": {"city": {"title": "City", "type": "string"}},
            "required": ["city"],
            "type": "object",
        },
    },
}


@pytest.fixture(scope="module")
def url(scripted_service: LocalService) -> str:
    return scripted_service.url


def post(url: str, path: str, body: dict[str, Any]) -> httpx.Response:
    response = httpx.post(url + path, json=body, timeout=TIMEOUT)
    assert response.status_code == 200, response.text
    return response


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    """Of a stream that ends as OpenAI's do."""
    done = "data: [DONE]\n\n"
    assert response.text.endswith("\n\n" + done)
    return parse_events(response.text.removesuffix(done))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param({"model": "dummy", "max_tokens": 50, "temperature": 0.8, "stream": False}, TEXT, id="langchain"),
        pytest.param(
            {**NULLS, "model": "tgi", "max_tokens": 100, "stream": False, "temperature": 0.1}, TEXT, id="llama-index"
        ),
        pytest.param(
            {"model": "tgi", "max_tokens": 30, "temperature": 0, "stop": ["\n"], "seed": 1234}, TEXT, id="lm-eval"
        ),
        pytest.param({"model": "tgi", "temperature": 0.2, "max_tokens": 50}, TEXT, id="litellm"),
        pytest.param({"model": "http://127.0.0.1:8080"}, TEXT, id="huggingface.js"),
        pytest.param({"model": "tgi", "stop": ["🤗", "zzz"]}, "naïve ", id="stops"),
    ],
)
def test_chats(url: str, body: dict[str, Any], expected: str) -> None:
    asked = {**body, "messages": [{"role": "user", "content": script(TEXT)}]}
    (choice,) = post(url, CHAT, asked).json()["choices"]
    assert choice["message"]["content"] == expected


def test_llama_index_calls_tools(url: str) -> None:
    message = {"role": "user", "content": script(CALL), "name": None, "tool_calls": None}
    asked = {"model": "tgi", "messages": [message], "tools": [WEATHER], "tool_choice": "auto", "max_tokens": 100}
    (choice,) = post(url, CHAT, {**NULLS, **asked, "stream": False, "temperature": 0.1}).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


def test_vercels_sdk_makes_objects(url: str) -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"name": {"type": "string"}, "people": {"type": "number"}},
        "required": ["name", "people"],
        "additionalProperties": False,
    }
    named = {"type": "json_schema", "json_schema": {"schema": schema, "strict": True, "name": "response"}}
    messages = [{"role": "user", "content": script('{"name": "Rome", "people": 3}')}]
    answer = post(url, CHAT, {"model": "tgi", "response_format": named, "messages": messages}).json()
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"name": "Rome", "people": 3}


@pytest.mark.parametrize("stream", [False, True])
def test_langchains_endpoint(url: str, stream: bool) -> None:
    parameters = {
        "do_sample": False,
        "max_new_tokens": 50,
        "return_full_text": False,
        "stop": [" three"],
        "temperature": 0.8,
        "top_p": 0.95,
        "typical_p": 0.95,
        "watermark": False,
    }
    body: dict[str, Any] = {"inputs": script("one two three four"), "parameters": parameters}
    response = post(url, "/", {**body, "stream": True} if stream else body)
    answer = parse_events(response.text)[-1] if stream else response.json()[0]
    assert answer["generated_text"] == "one two three"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (
            CHAT,
            {
                "max_completion_tokens": 8,
                "messages": [{"role": "user", "content": [{"type": "text", "text": script("a b")}]}],
            },
        ),
        (COMPLETIONS, {"max_tokens": 8, "prompt": script("a b")}),
    ],
)
def test_guidellm_counts_tokens(url: str, path: str, asked: dict[str, Any]) -> None:
    """It looks for the service and its models first, and wants exactly as many tokens as it asks for."""
    assert httpx.get(f"{url}/health").status_code == 200
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": model, "stream": True, "stream_options": options, "ignore_eos": True, **asked}
    heard = chunks(post(url, path, body))
    assert heard[-1]["usage"]["completion_tokens"] == 8
    counts = [chunk["usage"]["completion_tokens"] for chunk in heard]
    assert counts == sorted(counts)


def test_lm_eval_scores_token_ids(url: str) -> None:
    prompts = [[504, 3575, 282, 4649], [504, 3575]]
    body = {"model": "tgi", "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    choices = post(url, COMPLETIONS, {**body, "prompt": prompts}).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    for prompt, choice in zip(prompts, choices, strict=True):
        logprobs = choice["logprobs"]
        assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(prompt) + 1
        assert logprobs["token_logprobs"][0] is None
        assert all(
            max(top.values()) >= own
            for own, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True)
        )
