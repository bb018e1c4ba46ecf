"""OpenAI's Python client, unmodified, synchronous and asynchronous: chat, tools, formats, completions, models, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion import Completion
from pydantic import BaseModel

from ops.local_service import LocalService
from tests.acceptance.native import another_web_node, script

TEXT = "naïve 🤗 words\u2028and\u0085more"
SECONDS = 60
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "description": "Now", "parameters": CITY}}
TIME: Any = {"type": "function", "function": {"name": "get_time", "parameters": CITY}}


class City(BaseModel):
    name: str
    people: int


def call(name: str, **arguments: Any) -> str:
    """As the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def said(text: str, **fields: Any) -> Any:
    """Messages that make the scripted model say `text`."""
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": script(text, **fields)}]


def of(service: LocalService, **options: Any) -> OpenAI:
    return OpenAI(base_url=f"{service.url}/v1", api_key="none", timeout=SECONDS, max_retries=0, **options)


@pytest.fixture(scope="module")
def client(scripted_service: LocalService) -> Iterator[OpenAI]:
    with of(scripted_service) as client:
        yield client


def test_comments_between_events_are_no_events(scripted_service: LocalService) -> None:
    """The client takes an empty line for an event once it has seen an id."""
    with another_web_node(scripted_service, {"TGQ_KEEPALIVE_SECONDS": "0.05"}) as (url, _):
        client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=SECONDS, max_retries=0)
        messages = said("one two three", first_ms=300, step_ms=300)
        with client, client.chat.completions.create(model="tgi", messages=messages, stream=True) as stream:
            parts = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(parts) == "one two three"


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tgi",
        messages=said(TEXT),
        max_completion_tokens=50,
        temperature=0,
        top_p=1,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        seed=-7,
        user="somebody",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
    )
    ChatCompletion.model_validate(answer.to_dict(), strict=True)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == "scripted"
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.message.tool_calls) == ("assistant", TEXT, None)
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    same = client.chat.completions.create(model="tgi", messages=said(TEXT), max_tokens=50)
    assert same.usage == answer.usage
    assert same.id != answer.id


def test_a_stream_of_chat(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="", messages=said(TEXT), max_tokens=50, stream=True, stream_options={"include_usage": True}
        )
    )
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.to_dict(), strict=True)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    *others, usage = chunks
    assert usage.choices == []
    assert usage.usage is not None
    deltas = [chunk.choices[0].delta for chunk in others]
    assert [delta.role for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
    assert "".join(delta.content or "" for delta in deltas) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in others] == [*[None] * (len(deltas) - 1), "stop"]
    whole = client.chat.completions.create(model="", messages=said(TEXT), max_tokens=50)
    assert whole.usage == usage.usage


def test_choices_log_probabilities_and_stops(client: OpenAI) -> None:
    options: Any = {
        "model": "scripted",
        "messages": said("one two three four"),
        "n": 2,
        "stop": [" three"],
        "logprobs": True,
        "top_logprobs": 2,
        "max_tokens": 20,
    }
    answer = client.chat.completions.create(**options)
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert (choice.message.content, choice.finish_reason) == ("one two", "stop")
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert [entry.token for entry in choice.logprobs.content] == ["one", " two", " three"]
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
        assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in choice.logprobs.content)
    cut = client.chat.completions.create(model="scripted", messages=said("one two three"), max_tokens=1)
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("one", "length")
    with client.chat.completions.stream(**options) as stream:
        gathered = stream.get_final_completion()
    assert [choice.message.content for choice in gathered.choices] == ["one two", "one two"]
    assert gathered.choices[1].logprobs is not None
    assert gathered.choices[1].logprobs.content == answer.choices[1].logprobs.content


def test_tools(client: OpenAI) -> None:
    declined = client.chat.completions.create(
        model="scripted", messages=said("just words"), tools=[WEATHER], max_tokens=50
    )
    assert declined.choices[0].message.content == "just words"
    assert declined.choices[0].finish_reason == "stop"
    both = f"{call('get_weather', city='Paris')}\n{call('get_time', city='Rome')}"
    options: Any = {
        "model": "scripted",
        "messages": said(both),
        "tools": [WEATHER, TIME],
        "tool_choice": "required",
        "max_tokens": 200,
    }
    answer = client.chat.completions.create(**options)
    ChatCompletion.model_validate(answer.to_dict(), strict=True)
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    calls: Any = choice.message.tool_calls
    assert [one.function.name for one in calls] == ["get_weather", "get_time"]
    assert [json.loads(one.function.arguments) for one in calls] == [{"city": "Paris"}, {"city": "Rome"}]
    assert len({one.id for one in calls}) == 2
    assert all(one.id.startswith("call_") for one in calls)

    with client.chat.completions.stream(**options) as stream:
        events = list(stream)
    ends = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(end.index, end.name) for end in ends] == [(0, "get_weather"), (1, "get_time")]
    final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    gathered: Any = final.message.tool_calls
    assert [one.function.arguments for one in gathered] == [one.function.arguments for one in calls]
    assert {one.id for one in gathered}.isdisjoint({one.id for one in calls})


def test_a_tool_call_and_its_result_in_the_history(client: OpenAI) -> None:
    history: Any = [
        *said(""),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": '{"city": "Rome"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": script("it is noon")},
    ]
    answer = client.chat.completions.create(model="scripted", messages=history, tools=[TIME], max_tokens=50)
    assert answer.choices[0].message.content == "it is noon"


def test_formats(client: OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model="scripted", messages=said('{"name": "Rome", "people": 3}'), response_format=City, max_tokens=50
    )
    assert parsed.choices[0].message.parsed == City(name="Rome", people=3)
    plain = client.chat.completions.create(
        model="scripted", messages=said('{"a": [1, 2]}'), response_format={"type": "json_object"}, max_tokens=50
    )
    assert json.loads(plain.choices[0].message.content or "") == {"a": [1, 2]}
    text = client.chat.completions.create(
        model="scripted", messages=said("words"), response_format={"type": "text"}, max_tokens=50
    )
    assert text.choices[0].message.content == "words"
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model="scripted", messages=said('{"name": "Rome", "people": 3}'), response_format=City, max_tokens=4
        )


def test_completions(client: OpenAI) -> None:
    answer = client.completions.create(model="scripted", prompt=[script(TEXT), script("two")], max_tokens=50)
    Completion.model_validate(answer.to_dict(), strict=True)
    assert answer.id.startswith("cmpl-")
    assert [(choice.index, choice.text, choice.finish_reason) for choice in answer.choices] == [
        (0, TEXT, "stop"),
        (1, "two", "stop"),
    ]
    chunks = list(
        client.completions.create(
            model="scripted",
            prompt=[script(TEXT), script("two")],
            n=2,
            max_tokens=50,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    texts = dict.fromkeys(range(4), "")
    for chunk in chunks[:-1]:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert list(texts.values()) == [TEXT, TEXT, "two", "two"]
    assert chunks[-1].usage is not None
    assert answer.usage is not None
    assert chunks[-1].usage.completion_tokens == 2 * answer.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == answer.usage.prompt_tokens
    # OpenAI's default
    short = client.completions.create(model="scripted", prompt="x")
    assert short.usage is not None
    assert short.usage.completion_tokens == 16


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").object == "model"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("owner/name")


def test_errors_are_its_own(scripted_service: LocalService, client: OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client.chat.completions.create(model="scripted", messages=said("x"), max_tokens=999_999)
    assert refused.value.code == "context_length_exceeded"
    assert "999999" in refused.value.message
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client.chat.completions.create(model="scripted", messages=said("x"), max_tokens=999_999, stream=True)
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="gpt-4", prompt="x")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.APIStatusError, match="raises at token 0") as failed:
        client.chat.completions.create(model="scripted", messages=said("a b", raise_at=0), max_tokens=9)
    assert failed.value.status_code == 424
    stream = client.chat.completions.create(
        model="scripted", messages=said("a b", raise_at=1), max_tokens=9, stream=True
    )
    heard: list[ChatCompletionChunk] = []
    with pytest.raises(openai.APIError, match="raises at token 1"):
        heard.extend(stream)
    assert heard
    assert all(chunk.choices[0].finish_reason is None for chunk in heard)
    with another_web_node(scripted_service, {"MAX_CONCURRENT_REQUESTS": "1", "API_KEY": "secret"}) as (url, _):
        keyed = OpenAI(base_url=f"{url}/v1", api_key="secret", timeout=SECONDS, max_retries=0)
        slow: Any = {"model": "scripted", "messages": said("slow ", repeat=500, step_ms=50), "max_tokens": 500}
        with keyed, keyed.chat.completions.create(**slow, stream=True):
            with pytest.raises(openai.RateLimitError, match="overloaded"):
                keyed.chat.completions.create(**slow)
            with pytest.raises(openai.AuthenticationError):
                keyed.with_options(api_key="wrong").chat.completions.create(**slow)


async def test_the_asynchronous_client(scripted_service: LocalService) -> None:
    async with AsyncOpenAI(base_url=f"{scripted_service.url}/v1", api_key="none", timeout=SECONDS) as client:
        answer = await client.chat.completions.create(model="scripted", messages=said(TEXT), max_tokens=50)
        assert answer.choices[0].message.content == TEXT
        stream = await client.chat.completions.create(model="scripted", messages=said(TEXT), max_tokens=50, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == TEXT
        completion = await client.completions.create(model="scripted", prompt=script("ok"), max_tokens=9)
        assert completion.choices[0].text == "ok"
        assert [model.id async for model in client.models.list()] == ["scripted"]
        with pytest.raises(openai.UnprocessableEntityError):
            await client.completions.create(model="scripted", prompt="")


def test_the_real_model(real_service: LocalService) -> None:
    with of(real_service) as client:
        question: Any = [{"role": "user", "content": "What is the capital of France?"}]
        options: Any = {"model": "tgi", "messages": question, "max_tokens": 12, "temperature": 0}
        answer = client.chat.completions.create(**options)
        assert "Paris" in (answer.choices[0].message.content or "")
        streamed = client.chat.completions.create(**options, stream=True)
        pieces = [chunk.choices[0].delta.content or "" for chunk in streamed]
        assert "".join(pieces) == answer.choices[0].message.content
        drawn: Any = {**options, "temperature": 1.5, "seed": 11}
        first, second = (client.chat.completions.create(**drawn).choices[0].message.content for _ in range(2))
        assert first == second
        called = client.chat.completions.create(
            model="tgi",
            messages=[{"role": "user", "content": "What is the weather in Paris?"}],
            tools=[WEATHER],
            tool_choice={"type": "function", "function": {"name": "get_weather"}},
            max_tokens=60,
            temperature=0,
        )
        calls: Any = called.choices[0].message.tool_calls
        assert calls[0].function.name == "get_weather"
        assert isinstance(json.loads(calls[0].function.arguments)["city"], str)


def test_the_real_models_log_probabilities_of_a_prompt(real_service: LocalService) -> None:
    """As harnesses ask for them: of token ids, with nothing generated that matters."""
    with of(real_service) as client:
        prompt = "The capital of France is Paris"
        plain = client.completions.create(
            model="tgi", prompt=prompt, max_tokens=1, temperature=0, logprobs=1, echo=True
        )
        scored = client.completions.create(model="tgi", prompt=prompt, max_tokens=0, logprobs=1, echo=True)
        logprobs: Any = plain.choices[0].logprobs
        assert "".join(logprobs.tokens) == plain.choices[0].text
        assert [
            plain.choices[0].text[start:][: len(token)]
            for start, token in zip(logprobs.text_offset, logprobs.tokens, strict=True)
        ] == logprobs.tokens
        assert logprobs.token_logprobs[0] is None
        assert logprobs.top_logprobs[0] is None
        assert all(logprob < 0 for logprob in logprobs.token_logprobs[1:])
        assert all(
            max(top.values()) >= own
            for top, own in zip(logprobs.top_logprobs[1:], logprobs.token_logprobs[1:], strict=True)
        )
        alone: Any = scored.choices[0].logprobs
        assert scored.choices[0].text == prompt
        assert alone.token_logprobs == logprobs.token_logprobs[:-1]
        assert scored.usage is not None
        assert scored.usage.completion_tokens == 0
        ids = [token["id"] for token in httpx.post(f"{real_service.url}/tokenize", json={"inputs": prompt}).json()]
        harness = client.completions.create(
            model="tgi", prompt=[ids, ids[:3]], max_tokens=1, temperature=0, logprobs=1, echo=True, seed=1234
        )
        for choice, length in zip(harness.choices, (len(ids), 3), strict=True):
            found: Any = choice.logprobs
            assert found.token_logprobs[:length] == logprobs.token_logprobs[:length]
            assert found.text_offset[:length] == logprobs.text_offset[:length]
