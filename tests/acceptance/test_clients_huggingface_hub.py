"""`huggingface_hub`'s clients, unmodified: `InferenceClient.text_generation` and its asynchronous sister."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import huggingface_hub.constants
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import GenerationError, OverloadedError, ValidationError

from ops.local_service import LocalService
from tests.acceptance.native import Occupied, another_web_node, script, until_free

TEXT = "naïve 🤗 words\u2028and\u0085more"
SECONDS = 60

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


def test_plain(scripted_service: LocalService) -> None:
    client = InferenceClient(scripted_service.url, timeout=SECONDS)
    assert client.text_generation(script(TEXT)) == TEXT
    whole = client.text_generation(script("one two three"), return_full_text=True, stop=["two"])
    assert whole == script("one two three") + "one two"


def test_details(scripted_service: LocalService) -> None:
    client = InferenceClient(scripted_service.url, timeout=SECONDS)
    output = client.text_generation(script(TEXT), details=True, decoder_input_details=True, top_n_tokens=2)
    assert output.generated_text == TEXT
    assert output.details is not None
    assert output.details.finish_reason == "eos_token"
    assert output.details.generated_tokens == len(output.details.tokens)
    assert output.details.prefill[0].text == "<<"
    assert output.details.top_tokens is not None
    assert {len(top) for top in output.details.top_tokens} <= set(range(2, 10))


def test_streams_with_comments_between(commenting: str) -> None:
    client = InferenceClient(commenting, timeout=SECONDS)
    prompt = script(TEXT, step_ms=120, first_ms=200)
    assert "".join(client.text_generation(prompt, stream=True)) == TEXT + "<|im_end|>"
    *others, last = client.text_generation(prompt, stream=True, details=True)
    assert "".join(event.token.text for event in others) == TEXT
    assert last.token.special
    assert last.generated_text == TEXT
    assert last.details is not None
    assert last.details.input_length > 0
    assert [event.index for event in (*others, last)] == list(range(1, len(others) + 2))


async def test_the_asynchronous_client(scripted_service: LocalService, commenting: str) -> None:
    async with AsyncInferenceClient(scripted_service.url, timeout=SECONDS) as client:
        assert await client.text_generation(script(TEXT)) == TEXT
        output = await client.text_generation(script(TEXT), details=True)
        assert output.details is not None
        assert output.details.finish_reason == "eos_token"
    until_free(scripted_service)
    async with AsyncInferenceClient(commenting, timeout=SECONDS) as client:
        prompt = script(TEXT, step_ms=120, first_ms=200)
        pieces = [piece async for piece in await client.text_generation(prompt, stream=True)]
        assert "".join(pieces) == TEXT + "<|im_end|>"
        events = [event async for event in await client.text_generation(prompt, stream=True, details=True)]
        assert events[-1].generated_text == TEXT


def test_errors_are_its_own(scripted_service: LocalService, commenting: str) -> None:
    client = InferenceClient(scripted_service.url, timeout=SECONDS)
    for stream in (False, True):
        with pytest.raises(ValidationError, match="`max_new_tokens`"):
            list(client.text_generation("x", max_new_tokens=999_999, stream=stream))
        with pytest.raises(GenerationError, match="raises at token 0"):
            list(client.text_generation(script("a", raise_at=0), stream=stream))
        with pytest.raises(GenerationError, match="raises at token 1"):
            list(client.text_generation(script("a b", raise_at=1), stream=stream))
        with Occupied(commenting), pytest.raises(OverloadedError, match="Model is overloaded"):
            list(InferenceClient(commenting, timeout=SECONDS).text_generation("x", stream=stream))


async def test_errors_of_the_asynchronous_client_are_its_own(scripted_service: LocalService, commenting: str) -> None:
    async with AsyncInferenceClient(scripted_service.url, timeout=SECONDS) as client:
        with pytest.raises(ValidationError, match="`max_new_tokens`"):
            await client.text_generation("x", max_new_tokens=999_999)
        with pytest.raises(GenerationError, match="raises at token 1"):
            _ = [piece async for piece in await client.text_generation(script("a b", raise_at=1), stream=True)]
    async with AsyncInferenceClient(commenting, timeout=SECONDS) as client:
        with Occupied(commenting), pytest.raises(OverloadedError, match="Model is overloaded"):
            await client.text_generation("x")


async def test_the_real_model(real_service: LocalService) -> None:
    prompt = "The capital of France is"
    client = InferenceClient(real_service.url, timeout=SECONDS)
    said = client.text_generation(prompt, max_new_tokens=8)
    assert "Paris" in said
    assert "".join(client.text_generation(prompt, max_new_tokens=8, stream=True)) == said
    output = client.text_generation(prompt, max_new_tokens=8, details=True)
    events = list(client.text_generation(prompt, max_new_tokens=8, details=True, stream=True))
    assert output.details is not None
    assert [event.token.id for event in events] == [token.id for token in output.details.tokens]
    async with AsyncInferenceClient(real_service.url, timeout=SECONDS) as other:
        drawn = await other.text_generation(prompt, do_sample=True, seed=5, temperature=1.5, max_new_tokens=8)
    assert drawn == client.text_generation(prompt, do_sample=True, seed=5, temperature=1.5, max_new_tokens=8)
