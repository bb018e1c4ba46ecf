"""`huggingface_hub`'s `chat_completion`, unmodified, synchronous and asynchronous: answers, streams, tools, formats, errors."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

import huggingface_hub.constants
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError, UnknownError

from ops.local_service import LocalService
from tests.acceptance.native import script

TEXT = "naïve 🤗 words\u2028and\u0085more"
SECONDS = 60
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "description": "Now", "parameters": CITY}}

# When a stream ends with an error, the clients leave its connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """What a test leaves lying about is not the next one's."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests tell the library to stay off the network, which it also takes to mean this machine."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def client(scripted_service: LocalService) -> InferenceClient:
    return InferenceClient(scripted_service.url, timeout=SECONDS)


def said(text: str, **fields: Any) -> Any:
    """Messages that make the scripted model say `text`."""
    return [{"role": "user", "content": script(text, **fields)}]


def test_an_answer(client: InferenceClient) -> None:
    answer = client.chat_completion(said(TEXT), max_tokens=50, logprobs=True, top_logprobs=2, stop=["never"], seed=3)
    (choice,) = answer.choices
    assert choice.message.content == TEXT
    assert choice.finish_reason == "stop"
    assert answer.model == "scripted"
    assert answer.usage.completion_tokens > 0
    assert choice.logprobs is not None
    assert "".join(entry.token for entry in choice.logprobs.content) == TEXT + "<|im_end|>"
    assert {len(entry.top_logprobs) for entry in choice.logprobs.content} == {2}


def test_a_stream(client: InferenceClient) -> None:
    options: Any = {"include_usage": True}
    chunks = list(client.chat_completion(said(TEXT), max_tokens=50, stream=True, stream_options=options))
    *others, usage = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in others) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in others][-2:] == [None, "stop"]
    assert usage.choices == []
    assert usage.usage is not None
    whole = client.chat_completion(said(TEXT), max_tokens=50)
    assert vars(usage.usage) == vars(whole.usage)


def test_tools(client: InferenceClient) -> None:
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    asked: Any = {"tools": [WEATHER], "tool_choice": "auto", "tool_prompt": "You may call:", "max_tokens": 100}
    answer = client.chat_completion(said(call), **asked)
    assert answer.choices[0].finish_reason == "tool_calls"
    (made,) = answer.choices[0].message.tool_calls or []
    assert made.function.name == "get_weather"
    assert json.loads(made.function.arguments) == {"city": "Paris"}
    chunks = list(client.chat_completion(said(call), stream=True, **asked))
    deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or ()]
    assert deltas[0].id.startswith("call_")
    assert deltas[0].function.name == "get_weather"
    assert "".join(delta.function.arguments for delta in deltas) == made.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_formats(client: InferenceClient) -> None:
    text = '{"city": "Rome"}'
    for response_format in (
        {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}},
        {"type": "json_object", "value": CITY},
        {"type": "json", "value": CITY},
        {"type": "regex", "value": ".+"},
        {"type": "json_object"},
        {"type": "text"},
    ):
        asked: Any = response_format
        answer = client.chat_completion(said(text), response_format=asked, max_tokens=50)
        assert answer.choices[0].message.content == text, response_format


def test_errors(client: InferenceClient) -> None:
    for stream in (False, True):
        with pytest.raises(HfHubHTTPError, match="422"):
            list(client.chat_completion(said("x"), max_tokens=999_999, stream=stream))
    with pytest.raises(HfHubHTTPError, match="404"):
        client.chat_completion(said("x"), model=None, extra_body={"model": "no/such"})
    with pytest.raises(UnknownError, match="raises at token 1"):
        list(client.chat_completion(said("a b", raise_at=1), max_tokens=9, stream=True))


async def test_the_asynchronous_client(scripted_service: LocalService) -> None:
    async with AsyncInferenceClient(scripted_service.url, timeout=SECONDS) as client:
        answer = await client.chat_completion(said(TEXT), max_tokens=50)
        assert answer.choices[0].message.content == TEXT
        stream = await client.chat_completion(said(TEXT), max_tokens=50, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == TEXT
        # As OpenAI's client is spoken to.
        other = await client.chat.completions.create(messages=said("ok"), model="tgi", max_tokens=9)
        assert other.choices[0].message.content == "ok"
