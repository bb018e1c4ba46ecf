"""TGI's own Python client, as last published.

Its `chat(..., stream=True)` reads the closing `[DONE]` as JSON and fails, on TGI too: it is not tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from text_generation import AsyncClient, Client  # type: ignore[import-untyped, unused-ignore]
from text_generation.errors import GenerationError, ValidationError  # type: ignore[import-untyped, unused-ignore]

if TYPE_CHECKING:
    from tests.clients.run_checks import Services

PACKAGES = ("text-generation",)
TEXT = "naïve 🤗 words\u2028and\u0085more"


def options(services: Services) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {services.key}"}, "timeout": 60}


def check_generate(services: Services) -> None:
    client = Client(services.scripted, **options(services))
    answer = client.generate(services.script(TEXT), max_new_tokens=50, decoder_input_details=True, top_n_tokens=2)
    assert answer.generated_text == TEXT
    assert answer.details.finish_reason == "eos_token"
    assert len(answer.details.top_tokens[0]) == 2


def check_generate_stream(services: Services) -> None:
    client = Client(services.scripted, **options(services))
    events = list(client.generate_stream(services.script(TEXT), max_new_tokens=50))
    assert "".join(event.token.text for event in events if not event.token.special) == TEXT
    assert events[-1].generated_text == TEXT


def check_chat(services: Services) -> None:
    client = Client(services.scripted, **options(services))
    answer = client.chat(services.said(TEXT), max_tokens=50)
    assert answer.choices[0].message.content == TEXT
    assert answer.usage["completion_tokens"] > 0


def check_chat_with_tools(services: Services) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Now", "parameters": parameters}}
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    client = Client(services.scripted, **options(services))
    answer = client.chat(services.said(call), tools=[tool], tool_choice="auto", max_tokens=100)
    (made,) = answer.choices[0].message.tool_calls
    assert made["function"]["name"] == "get_weather"


def check_errors(services: Services) -> None:
    client = Client(services.scripted, **options(services))
    for kind, prompt, tokens in (
        (ValidationError, "x", 999_999),
        (GenerationError, services.script("a", raise_at=0), 5),
    ):
        for call in (client.generate, lambda *given, **named: list(client.generate_stream(*given, **named))):
            try:
                call(prompt, max_new_tokens=tokens)
            except kind:
                continue
            raise AssertionError(f"no {kind.__name__}")


async def check_asynchronous(services: Services) -> None:
    client = AsyncClient(services.scripted, **options(services))
    assert (await client.generate(services.script(TEXT), max_new_tokens=50)).generated_text == TEXT
    events = [event async for event in client.generate_stream(services.script(TEXT), max_new_tokens=50)]
    assert events[-1].generated_text == TEXT
    assert (await client.chat(services.said(TEXT), max_tokens=50)).choices[0].message.content == TEXT


def check_real_model(services: Services) -> None:
    client = Client(services.real, **options(services))
    assert "Paris" in client.generate("The capital of France is", max_new_tokens=8).generated_text
