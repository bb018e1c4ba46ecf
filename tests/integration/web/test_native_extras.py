"""`/tokenize`, `/chat_tokenize` and `/invocations`, with a model that has a chat template and begins every prompt with a token."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, processors

from common.model_files import default_model_folder
from common.settings import Settings
from ops.embedded_redis import EmbeddedRedis
from tests.byte_model import EOS, write_byte_model
from tests.integration.web.serving import WebNode, events, saying, web_node, worker

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hé"}]}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, redis_server: EmbeddedRedis) -> Iterator[WebNode]:
    cache = tmp_path_factory.mktemp("chat")
    write_byte_model(cache)
    folder = default_model_folder(Settings.of(cache_dir=cache))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    _begin_prompts(folder / "tokenizer.json")
    with web_node(cache, redis_server.url) as node:
        yield node


def _begin_prompts(file: Path) -> None:
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.post_processor = processors.TemplateProcessing(single="<end> $A", special_tokens=[("<end>", EOS)])
    tokenizer.save(str(file))


@pytest.fixture
async def client(node: WebNode, redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
        yield http


async def test_tokenize_with_and_without_special_tokens(client: httpx.AsyncClient) -> None:
    for body in ({"inputs": "é!"}, {"inputs": "é!", "add_special_tokens": True, "parameters": {"truncate": 1}}):
        first, *rest = (await client.post("/tokenize", json=body)).json()
        assert first == {"id": EOS, "text": "", "start": 0, "stop": 0}
        assert [(token["text"], token["start"], token["stop"]) for token in rest][-1] == ("!", 2, 3)
        assert len(rest) == 3
    bare = (await client.post("/tokenize", json={"inputs": "é!", "add_special_tokens": False})).json()
    assert bare == rest
    assert (await client.post("/tokenize", json={"inputs": "x", "add_special_tokens": 1})).status_code == 422


async def test_chat_tokenize(client: httpx.AsyncClient) -> None:
    response = await client.post("/chat_tokenize", json=CHAT)
    assert response.status_code == 200
    answer = response.json()
    assert list(answer) == ["tokenize_response", "templated_text"]
    text = answer["templated_text"]
    assert text == "<user>Hé<assistant>"
    tokens = answer["tokenize_response"]
    assert len(tokens) == len(text.encode())
    assert EOS not in [token["id"] for token in tokens]
    assert tokens[-1] == {"id": tokens[-1]["id"], "text": ">", "start": len(tokens) - 1, "stop": len(tokens)}


async def test_chat_tokenize_of_a_long_chat(client: httpx.AsyncClient) -> None:
    content = 'word \u2028"' * 3000
    answer = (await client.post("/chat_tokenize", json={"messages": [{"role": "user", "content": content}]})).json()
    assert answer["templated_text"] == f"<user>{content}<assistant>"
    assert len(answer["tokenize_response"]) == len(answer["templated_text"].encode())


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"messages": []}, 422),
        ({"messages": [{"role": "nobody", "content": "x"}]}, 422),
        ({**CHAT, "model": "nobody"}, 404),
    ],
)
async def test_chat_tokenize_refuses_in_tgis_form(client: httpx.AsyncClient, body: Any, status: int) -> None:
    response = await client.post("/chat_tokenize", json=body)
    assert response.status_code == status
    assert set(response.json()) == {"error", "error_type"}


async def test_tokenize_counts_what_is_generated_from(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("ok")) as fake:
        await client.post("/generate", json={"inputs": "Hé"})
        await client.post("/v1/chat/completions", json=CHAT)
    plain, chat = (job.prompt_ids for job in fake.jobs.values())
    assert plain == [token["id"] for token in (await client.post("/tokenize", json={"inputs": "Hé"})).json()]
    tokenized = (await client.post("/chat_tokenize", json=CHAT)).json()["tokenize_response"]
    assert chat == [token["id"] for token in tokenized]


async def test_invocations_take_all_three_bodies(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("ok")):
        assert (await client.post("/invocations", json={"inputs": "x"})).json() == [{"generated_text": "ok"}]
        chat = (await client.post("/invocations", json=CHAT)).json()
        assert (chat["object"], chat["choices"][0]["message"]["content"]) == ("chat.completion", "ok")
        completion = (await client.post("/invocations", json={"prompt": "x"})).json()
        assert (completion["object"], completion["choices"][0]["text"]) == ("text_completion", "ok")
        # The first of them counts, as in TGI.
        both = await client.post("/invocations", json={"inputs": "x", "prompt": "x", **CHAT})
        assert both.json() == [{"generated_text": "ok"}]
        assert both.headers["x-ignored-parameters"] == "prompt, messages"
        assert (await client.post("/invocations", json={"inputs": None, **CHAT})).json()["object"] == "chat.completion"


async def test_invocations_stream_each_in_its_way(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("ok")):
        native = await client.post("/invocations", json={"inputs": "x", "stream": True})
        chat = await client.post("/invocations", json={**CHAT, "stream": True})
    assert [event["token"]["text"] for event in events(native.text)] == ["o", "k", "<end>"]
    assert chat.text.endswith("data: [DONE]\n\n")
    assert '"chat.completion.chunk"' in chat.text


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 422, "`inputs`, `messages` or `prompt` is required"),
        ({"text_input": "x"}, 422, "is required"),
        ({"inputs": 5}, 422, "`inputs`"),
        ({"prompt": {}}, 422, "`prompt`"),
        ({"messages": "x"}, 422, "`messages`"),
        ({"prompt": "x", "model": "nobody"}, 404, "nobody"),
        ([], 422, "object"),
    ],
)
async def test_invocations_refuse_in_tgis_form(client: httpx.AsyncClient, body: Any, status: int, said: str) -> None:
    response = await client.post("/invocations", json=body)
    assert response.status_code == status
    assert set(response.json()) == {"error", "error_type"}
    assert said in response.json()["error"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": "abc"}),
        ("/", {"inputs": "abc"}),
        ("/invocations", {"inputs": "abc"}),
        ("/v1/completions", {"prompt": "abc"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "abc"}]}),
        ("/v2/models/scripted/generate", {"text_input": "abc"}),
    ],
)
async def test_every_generation_has_the_timing_headers(
    client: httpx.AsyncClient, redis_url: str, path: str, body: dict[str, Any]
) -> None:
    """Names and types of Hugging Face's contract."""
    async with worker(redis_url, saying("ok")) as fake:
        headers = (await client.post(path, json=body)).headers
    (job,) = fake.jobs.values()
    assert headers["x-compute-type"]
    assert headers["x-compute-characters"] == "3"
    assert headers["x-prompt-tokens"] == str(len(job.prompt_ids))
    assert headers["x-generated-tokens"] == "3"
    for name in ("total-time", "validation-time", "queue-time", "inference-time", "time-per-token"):
        assert int(headers[f"x-{name}"]) >= 0
    assert 0 < float(headers["x-compute-time"]) < 30
