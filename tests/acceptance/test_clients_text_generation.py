"""The `text-generation` package, unmodified: TGI's own Python client."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from text_generation import AsyncClient, Client  # type: ignore[import-untyped]
from text_generation.errors import GenerationError, OverloadedError, ValidationError  # type: ignore[import-untyped]
from text_generation.types import FinishReason, StreamResponse  # type: ignore[import-untyped]

from ops.local_service import LocalService
from tests.acceptance.native import Occupied, another_web_node, script, until_free

pytestmark = [
    # The client calls methods that its own dependencies have renamed since.
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    # When a stream ends with an error, it leaves the connection to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SECONDS = 60
TEXT = "naïve 🤗 words\u2028and\u0085more"


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """What a test leaves lying about is not the next one's."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def narrow(scripted_service: LocalService) -> Iterator[str]:
    settings = {"TGQ_KEEPALIVE_SECONDS": "0.05", "MAX_CONCURRENT_REQUESTS": "1"}
    with another_web_node(scripted_service, settings) as (url, _):
        yield url


@pytest.fixture
def commenting(scripted_service: LocalService, narrow: str) -> str:
    """A web node that fills every short silence with comments and admits one request, whose place is free."""
    until_free(scripted_service)
    return narrow


def check_stream(events: list[StreamResponse], text: str) -> None:
    *others, last = events
    assert "".join(event.token.text for event in events if not event.token.special) == text
    assert all(event.generated_text is None and event.details is None for event in others)
    assert last.generated_text == text
    assert last.details is not None
    assert last.details.generated_tokens == len(events)
    assert last.details.finish_reason is FinishReason.EndOfSequenceToken


def test_generate(scripted_service: LocalService) -> None:
    client = Client(scripted_service.url, timeout=SECONDS)
    response = client.generate(script(TEXT), decoder_input_details=True, top_n_tokens=2, max_new_tokens=50)
    assert response.generated_text == TEXT
    details = response.details
    assert details.finish_reason is FinishReason.EndOfSequenceToken
    assert details.generated_tokens == len(details.tokens)
    assert details.prefill[0].logprob is None
    assert details.top_tokens is not None
    assert all(top[0].id == token.id for top, token in zip(details.top_tokens, details.tokens, strict=True))
    stopped = client.generate(script("one two three"), stop_sequences=["wo"], return_full_text=True)
    assert stopped.generated_text == script("one two three") + "one two"
    assert stopped.details.finish_reason is FinishReason.StopSequence


def test_generate_stream_with_comments_between(commenting: str) -> None:
    client = Client(commenting, timeout=SECONDS)
    check_stream(list(client.generate_stream(script(TEXT, step_ms=120, first_ms=200), max_new_tokens=50)), TEXT)


async def test_the_asynchronous_client(scripted_service: LocalService, commenting: str) -> None:
    response = await AsyncClient(scripted_service.url, timeout=SECONDS).generate(script(TEXT), max_new_tokens=50)
    assert response.generated_text == TEXT
    until_free(scripted_service)
    client = AsyncClient(commenting, timeout=SECONDS)
    stream = client.generate_stream(script(TEXT, step_ms=120, first_ms=200), max_new_tokens=50)
    check_stream([event async for event in stream], TEXT)


def test_errors_are_its_own(scripted_service: LocalService, commenting: str) -> None:
    client = Client(scripted_service.url, timeout=SECONDS)
    with pytest.raises(ValidationError, match="`max_new_tokens`"):
        client.generate("x", max_new_tokens=999_999)
    with pytest.raises(ValidationError, match="`max_new_tokens`"):
        next(client.generate_stream("x", max_new_tokens=999_999))
    with pytest.raises(GenerationError, match="raises at token 0"):
        client.generate(script("a", raise_at=0))
    with pytest.raises(GenerationError, match="raises at token 0"):
        next(client.generate_stream(script("a", raise_at=0)))
    stream = client.generate_stream(script("a b", raise_at=1))
    assert next(stream).token.text == "a"
    with pytest.raises(GenerationError, match="raises at token 1"):
        next(stream)
    with Occupied(commenting):
        client = Client(commenting, timeout=SECONDS)
        with pytest.raises(OverloadedError, match="Model is overloaded"):
            client.generate("x")
        with pytest.raises(OverloadedError, match="Model is overloaded"):
            next(client.generate_stream("x"))


async def test_errors_of_the_asynchronous_client_are_its_own(scripted_service: LocalService, commenting: str) -> None:
    client = AsyncClient(scripted_service.url, timeout=SECONDS)
    with pytest.raises(ValidationError, match="`max_new_tokens`"):
        await client.generate("x", max_new_tokens=999_999)
    with pytest.raises(GenerationError, match="raises at token 0"):
        await anext(client.generate_stream(script("a", raise_at=0)))
    with pytest.raises(GenerationError, match="raises at token 1"):
        _ = [event async for event in client.generate_stream(script("a b", raise_at=1))]
    with Occupied(commenting), pytest.raises(OverloadedError, match="Model is overloaded"):
        await AsyncClient(commenting, timeout=SECONDS).generate("x")


async def test_chat(scripted_service: LocalService) -> None:
    """Whole answers: its streams fail in its own parser, whatever a server sends."""
    messages = [{"role": "user", "content": script(TEXT)}]
    answer = Client(scripted_service.url, timeout=SECONDS).chat(messages=messages, max_tokens=50, logprobs=True, seed=1)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert "".join(entry["token"] for entry in choice.logprobs["content"]) == TEXT + "<|im_end|>"
    again = await AsyncClient(scripted_service.url, timeout=SECONDS).chat(messages=messages, max_tokens=50)
    assert again.choices[0].message == choice.message
    assert again.usage == answer.usage


async def test_the_real_model(real_service: LocalService) -> None:
    prompt = "The capital of France is"
    client = Client(real_service.url, timeout=SECONDS)
    said = client.generate(prompt, max_new_tokens=8)
    assert "Paris" in said.generated_text
    assert said.details.finish_reason is FinishReason.Length
    streamed = list(client.generate_stream(prompt, max_new_tokens=8))
    assert [event.token for event in streamed] == said.details.tokens
    drawn = [
        await AsyncClient(real_service.url, timeout=SECONDS).generate(
            prompt, do_sample=True, seed=seed, temperature=1.5, top_k=50, top_p=0.95, typical_p=0.9, max_new_tokens=8
        )
        for seed in (11, 11)
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0].details.seed == 11
