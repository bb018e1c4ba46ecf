"""OpenAI's Python client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from openai import APIError, AsyncOpenAI, AuthenticationError, NotFoundError, OpenAI, UnprocessableEntityError
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

if TYPE_CHECKING:
    from tests.clients.run_checks import Services

PACKAGES = ("openai",)
TEXT = "naïve 🤗 words\u2028and\u0085more"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "description": "Now", "parameters": CITY}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class City(BaseModel):
    name: str
    people: int


def of(url: str, services: Services) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=services.key, timeout=60, max_retries=0)


def check_chat(services: Services) -> None:
    messages: Any = services.said(TEXT)
    client = of(services.scripted, services)
    answer = client.chat.completions.create(model="tgi", messages=messages, n=2, seed=1, logprobs=True, top_logprobs=2)
    ChatCompletion.model_validate(answer.to_dict(), strict=True)
    assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]
    assert answer.choices[0].logprobs
    assert len((answer.choices[0].logprobs.content or [])[0].top_logprobs) == 2


def check_chat_stream(services: Services) -> None:
    messages: Any = services.said(TEXT)
    client = of(services.scripted, services)
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="tgi", messages=messages, stream=True, stream_options=options))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.to_dict(), strict=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == TEXT
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage == client.chat.completions.create(model="tgi", messages=messages).usage


def check_tools(services: Services) -> None:
    options: Any = {"model": "tgi", "messages": services.said(CALL), "tools": [WEATHER]}
    client = of(services.scripted, services)
    answer = client.chat.completions.create(**options, tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    with client.chat.completions.stream(**options) as stream:
        final: Any = stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.arguments == call.function.arguments
    history: Any = [
        {"role": "user", "content": "The weather?"},
        answer.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": services.script("rain")},
    ]
    after = client.chat.completions.create(model="tgi", messages=history, tools=[WEATHER])
    assert after.choices[0].message.content == "rain"


def check_response_formats(services: Services) -> None:
    messages: Any = services.said('{"name": "Rome", "people": 3}')
    completions = of(services.scripted, services).chat.completions
    parsed = completions.parse(model="tgi", messages=messages, response_format=City)
    assert parsed.choices[0].message.parsed == City(name="Rome", people=3)
    plain = completions.create(model="tgi", messages=messages, response_format={"type": "json_object"})
    assert json.loads(plain.choices[0].message.content or "")["people"] == 3


def check_completions(services: Services) -> None:
    client = of(services.scripted, services)
    prompts = [services.script(TEXT), services.script("two")]
    answer = client.completions.create(model="tgi", prompt=prompts, max_tokens=30)
    Completion.model_validate(answer.to_dict(), strict=True)
    assert [choice.text for choice in answer.choices] == [TEXT, "two"]
    texts = ["", ""]
    for chunk in client.completions.create(model="tgi", prompt=prompts, max_tokens=30, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [TEXT, "two"]
    echoed = of(services.real, services).completions.create(
        model="tgi", prompt=[[504, 3575, 282], [504]], echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    assert [len((choice.logprobs and choice.logprobs.tokens) or []) for choice in echoed.choices] == [4, 2]


def check_models(services: Services) -> None:
    client = of(services.scripted, services)
    (model,) = client.models.list()
    Model.model_validate(model.to_dict(), strict=True)
    assert client.models.retrieve(model.id) == model


def check_errors(services: Services) -> None:
    client = of(services.scripted, services)
    create: Any = client.chat.completions.create
    usual: dict[str, Any] = {"model": "tgi", "messages": services.said("a b", raise_at=1)}
    expected: list[tuple[type[APIError], str, Any]] = [
        (UnprocessableEntityError, "max_tokens", lambda: create(**usual, max_tokens=999_999)),
        (UnprocessableEntityError, "temperature", lambda: create(**usual, temperature=-1, stream=True)),
        (NotFoundError, "gpt-4", lambda: create(**usual | {"model": "gpt-4"})),
        (AuthenticationError, "key", client.with_options(api_key="wrong").models.list),
        (APIError, "raises at token 1", lambda: list(create(**usual, stream=True))),
    ]
    for kind, words, call in expected:
        raised = None
        try:
            call()
        except kind as error:
            raised = error.message
        assert words in (raised or ""), (kind, raised)


async def check_asynchronous(services: Services) -> None:
    async with AsyncOpenAI(base_url=f"{services.scripted}/v1", api_key=services.key) as client:
        messages: Any = services.said(TEXT)
        stream = await client.chat.completions.create(model="tgi", messages=messages, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == TEXT


def check_real_model(services: Services) -> None:
    client = of(services.real, services)
    question: Any = [{"role": "user", "content": "What is the capital of France?"}]
    answer = client.chat.completions.create(model="tgi", messages=question, max_tokens=12, temperature=0)
    assert "Paris" in (answer.choices[0].message.content or "")
