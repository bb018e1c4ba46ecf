"""Hugging Face's client for inference endpoints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import GenerationError, HfHubHTTPError, UnknownError, ValidationError

if TYPE_CHECKING:
    from tests.clients.run_checks import Services

PACKAGES = ("huggingface_hub",)
TEXT = "naïve 🤗 words\u2028and\u0085more"
END = "<|im_end|>"
"""Its streams of text have the texts of all tokens, also of those that are not text."""
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ONE_OF_TWO = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "description": "Now", "parameters": CITY}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def of(url: str, services: Services, **options: Any) -> InferenceClient:
    return InferenceClient(url, token=services.key, timeout=60, **options)


def check_text_generation(services: Services) -> None:
    client = of(services.scripted, services)
    prompt = services.script(TEXT)
    assert client.text_generation(prompt) == TEXT
    answer = client.text_generation(
        prompt, details=True, decoder_input_details=True, best_of=2, do_sample=True, max_new_tokens=50, top_n_tokens=2
    )
    assert answer.generated_text == TEXT
    assert answer.details
    assert answer.details.finish_reason == "eos_token"
    assert answer.details.best_of_sequences
    assert answer.details.prefill


def check_text_generation_stream(services: Services) -> None:
    client = of(services.scripted, services)
    prompt = services.script(TEXT)
    assert "".join(client.text_generation(prompt, stream=True)) == TEXT + END
    events = list(client.text_generation(prompt, stream=True, details=True))
    assert events[-1].generated_text == TEXT
    assert events[-1].details
    assert events[-1].details.generated_tokens == len(events)


def check_text_generation_grammar(services: Services) -> None:
    grammar: Any = {"type": "json", "value": ONE_OF_TWO}
    answer = of(services.real, services).text_generation("Paris as JSON: ", grammar=grammar, max_new_tokens=60)
    assert json.loads(answer)["city"] in ("Paris", "Rome")


def check_chat_completion(services: Services) -> None:
    messages: Any = services.said(TEXT)
    client = of(services.scripted, services)
    answer = client.chat_completion(messages, logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.content == TEXT
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(messages=messages, stream=True, stream_options=options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == TEXT
    assert chunks[-1].usage
    assert chunks[-1].usage.total_tokens == answer.usage.total_tokens


def check_chat_completion_by_its_url(services: Services) -> None:
    """The client as OpenAI's: a base URL that ends with the version, and a model's name with each call."""
    client = InferenceClient(base_url=f"{services.scripted}/v1", api_key=services.key)
    messages: Any = services.said(TEXT)
    assert client.chat.completions.create(messages=messages, model="tgi").choices[0].message.content == TEXT


def check_tools(services: Services) -> None:
    messages: Any = services.said(CALL)
    client = of(services.scripted, services)
    for choice in ("auto", "required", {"function": {"name": "get_weather"}}):
        asked: Any = {"tools": [WEATHER], "tool_choice": choice}
        answer = client.chat_completion(messages, **asked)
        (call,) = answer.choices[0].message.tool_calls or []
        assert json.loads(call.function.arguments) == {"city": "Paris"}, choice
        deltas = [
            delta
            for chunk in client.chat_completion(messages, stream=True, **asked)
            for delta in chunk.choices[0].delta.tool_calls or []
        ]
        assert "".join(delta.function.arguments for delta in deltas) == call.function.arguments, choice


def check_response_format(services: Services) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": ONE_OF_TWO, "strict": True}}
    messages: Any = [{"role": "user", "content": "A city as JSON."}]
    answer = of(services.real, services).chat_completion(messages, response_format=schema, max_tokens=60)
    assert json.loads(answer.choices[0].message.content or "")["city"] in ("Paris", "Rome")


def check_endpoint_info_and_health(services: Services) -> None:
    client = of(services.scripted, services, provider="hf-inference")
    assert client.get_endpoint_info()["model_id"] == "scripted"
    assert client.health_check() is True


def check_errors(services: Services) -> None:
    client = of(services.scripted, services)
    raised: list[type[Exception]] = []
    calls: list[Any] = [
        lambda: client.text_generation("x", max_new_tokens=999_999),
        lambda: client.text_generation(services.script("a", raise_at=0)),
        lambda: list(client.text_generation(services.script("a b", raise_at=1), stream=True)),
        lambda: client.chat_completion([{"role": "user", "content": "x"}], max_tokens=999_999),
        lambda: InferenceClient(services.scripted, token="wrong").text_generation("x"),
    ]
    for call in calls:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - which one it is, is the question
            raised.append(type(error))
    # It has no class for a key that is refused.
    assert raised == [ValidationError, GenerationError, GenerationError, HfHubHTTPError, UnknownError], raised


async def check_asynchronous(services: Services) -> None:
    async with AsyncInferenceClient(services.scripted, token=services.key) as client:
        assert await client.text_generation(services.script(TEXT)) == TEXT
        stream = await client.text_generation(services.script(TEXT), stream=True)
        assert "".join([piece async for piece in stream]) == TEXT + END
        messages: Any = services.said(TEXT)
        assert (await client.chat_completion(messages)).choices[0].message.content == TEXT


def check_real_model(services: Services) -> None:
    assert "Paris" in of(services.real, services).text_generation("The capital of France is", max_new_tokens=8)
