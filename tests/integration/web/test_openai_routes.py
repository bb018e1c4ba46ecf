"""OpenAI's routes over HTTP: the bytes of streams, headers, what is queued and what is not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from common.wire import Finish, Job, PrefillToken, Token, Tokens
from ops.embedded_redis import EmbeddedRedis
from tests.byte_model import write_byte_model
from tests.integration.client.fake_worker import FakeWorker
from tests.integration.web.serving import WebNode, eventually, failing_after, saying, web_node, worker

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
SAY: dict[str, Any] = {"messages": [{"role": "user", "content": "Say"}], "max_tokens": 20}
TEMPLATE = (
    "{% for m in messages %}[{{ m.role[0] }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, redis_server: EmbeddedRedis) -> Iterator[WebNode]:
    folder = tmp_path_factory.mktemp("openai")
    write_byte_model(folder, chat_template=TEMPLATE)
    with web_node(folder, redis_server.url, max_concurrent_requests=8) as node:
        yield node


@pytest.fixture
async def client(node: WebNode, redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
        yield http


def chunks(text: str) -> list[dict[str, Any]]:
    """Of a stream that ends as it should."""
    *frames, done, nothing = text.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    assert all(frame.startswith("data: {") and "\n" not in frame for frame in frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def letter(token_id: int) -> str:
    """Of a token of the byte model, whose alphabet begins with `!`."""
    return chr(token_id + ord("!"))


def naming_prompts(prefill: bool = False) -> Any:
    """Says a prompt's first character and the number of the child, each token in a frame of its own."""

    async def behave(fake: FakeWorker, job: Job) -> None:
        await fake.accept(job)
        children = job.parameters.children
        for child in range(children):
            token = Token(job.prompt_ids[0], letter(job.prompt_ids[0]), -0.5 * (child + 1), False)
            await fake.emit(job, Tokens(0, [token], None, child, children))
        for child in range(children):
            tokens = [
                PrefillToken(each, letter(each), -1.0 if place else None) for place, each in enumerate(job.prompt_ids)
            ]
            finish = Finish("length", 2, 0.01, None, tokens if prefill and child == 0 else [])
            token = Token(child, str(child), -0.5, False)
            await fake.emit(job, Tokens(1, [token], finish, child, children - child - 1))

    return behave


async def test_a_chat(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("Hé!")) as fake:
        response = await client.post(CHAT, json={**SAY, "seed": 5, "surprise": 1}, headers={"x-request-id": "my-id"})
    assert response.status_code == 200
    body = response.json()
    assert body["id"] == "chatcmpl-my-id"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hé!", "refusal": None}
    (job,) = fake.jobs.values()
    assert "".join(map(letter, job.prompt_ids)) == "[u]Say[a]"
    assert (job.parameters.max_new_tokens, job.parameters.sample, job.parameters.seed) == (20, True, 5)
    assert body["usage"] == {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    headers = response.headers
    assert headers["x-ignored-parameters"] == "surprise"
    assert headers["x-compute-characters"] == "3"
    assert headers["x-prompt-tokens"] == "9"
    assert headers["x-generated-tokens"] == "4"
    assert headers["content-type"] == "application/json"


async def test_an_answer_may_fill_the_context(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("x")) as fake:
        for limit in ({"max_tokens": None}, {"max_completion_tokens": None}):
            assert (await client.post(CHAT, json={**SAY, "max_tokens": None, **limit})).status_code == 200
    assert {len(job.prompt_ids) + job.parameters.max_new_tokens for job in fake.jobs.values()} == {256}


async def test_a_stream_of_chat(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("a\u2028🤗")):
        response = await client.post(CHAT, json={**SAY, "stream": True, "stream_options": {"include_usage": True}})
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["x-accel-buffering"] == "no"
    assert "\u2028" not in response.text
    role, *texts, end, usage = chunks(response.text)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"] for chunk in texts] == [{"content": each} for each in ("a", "\u2028", "🤗")]
    assert (end["choices"][0]["delta"], end["choices"][0]["finish_reason"]) == ({}, "stop")
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 4)


@pytest.mark.parametrize(("path", "body"), [(CHAT, SAY), (TEXT, {"prompt": "Say"})])
async def test_an_error_ends_a_stream_without_a_done(
    client: httpx.AsyncClient, redis_url: str, path: str, body: dict[str, Any]
) -> None:
    async with worker(redis_url, failing_after(2)):
        response = await client.post(path, json={**body, "stream": True})
    assert response.status_code == 200
    frames = response.text.removesuffix("\n\n").split("\n\n")
    error = json.loads(frames[-1].removeprefix("data: "))["error"]
    assert "broken on purpose" in error["message"]
    assert error["code"] == "generation"
    assert "[DONE]" not in response.text
    assert '"finish_reason":"' not in response.text


async def test_prompts_and_choices_are_numbered(client: httpx.AsyncClient, redis_url: str) -> None:
    asked = {"prompt": ["pq", "rst"], "n": 2, "max_tokens": 2}
    async with worker(redis_url, naming_prompts()) as fake:
        whole = (await client.post(TEXT, json=asked)).json()
        stream = chunks((await client.post(TEXT, json={**asked, "stream": True})).text)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    texts = [choice["text"] for choice in whole["choices"]]
    assert texts == ["p0", "p1", "r0", "r1"]
    joined = dict.fromkeys(range(4), "")
    for chunk in stream:
        joined[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert list(joined.values()) == texts
    assert whole["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
    assert len(fake.jobs) == 4


async def test_prompts_of_token_ids(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("ok")) as fake:
        assert (await client.post(TEXT, json={"prompt": [1, 2, 3]})).json()["choices"][0]["text"] == "ok"
        both = (await client.post(TEXT, json={"prompt": [[1, 2], [3]]})).json()
    assert sorted(job.prompt_ids for job in fake.jobs.values()) == [[1, 2], [1, 2, 3], [3]]
    assert [choice["text"] for choice in both["choices"]] == ["ok", "ok"]
    assert both["usage"]["prompt_tokens"] == 3


async def test_the_best_of_several_and_an_echo(client: httpx.AsyncClient, redis_url: str) -> None:
    asked = {"prompt": ["pq", "rst"], "best_of": 3, "max_tokens": 2, "echo": True, "logprobs": 0}
    async with worker(redis_url, naming_prompts(prefill=True)):
        response = await client.post(TEXT, json=asked)
    first, second = response.json()["choices"]
    assert [first["text"], second["text"]] == ["pqp0", "rstr0"]
    assert first["logprobs"] == {
        "tokens": ["p", "q", "p", "0"],
        "token_logprobs": [None, -1.0, -0.5, -0.5],
        "top_logprobs": [None, {"q": -1.0}, {"p": -0.5}, {"0": -0.5}],
        "text_offset": [0, 1, 2, 3],
    }
    assert second["logprobs"]["tokens"] == ["r", "s", "t", "r", "0"]


TOO_LONG: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {**SAY, "max_tokens": 999_999}),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 300}]}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        *((path, body, "messages") for path, body in TOO_LONG),
        (CHAT, {**SAY, "max_tokens": 0}, "max_tokens"),
        (CHAT, {**SAY, "frequency_penalty": 3}, "frequency_penalty"),
        (CHAT, {**SAY, "n": 9}, "n"),
        (CHAT, {**SAY, "top_logprobs": 1}, "top_logprobs"),
        (CHAT, {**SAY, "logit_bias": {"9999": 1}}, "logit_bias"),
        (CHAT, {**SAY, "response_format": {"type": "regex", "value": "[a"}}, "response_format"),
        (CHAT, {**SAY, "tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        (CHAT, {"max_tokens": 1}, "messages"),
        (TEXT, {"prompt": ""}, "prompt"),
        (TEXT, {"prompt": [[]]}, "prompt"),
        (TEXT, {"prompt": [-1]}, "prompt"),
        (TEXT, {"prompt": [[999]]}, "prompt"),
        (TEXT, {"prompt": "x", "stop": ["a", ""]}, "stop"),
        (TEXT, {"prompt": "x", "suffix": "y"}, "suffix"),
        (TEXT, {"max_tokens": 1}, "prompt"),
    ],
)
async def test_a_refusal_comes_before_anything_is_queued(
    client: httpx.AsyncClient, redis_url: str, path: str, body: dict[str, Any], param: str, stream: bool
) -> None:
    async with worker(redis_url, saying("x")) as fake:
        response = await client.post(path, json={**body, "stream": stream})
        assert (await client.post(TEXT, json={"prompt": "x"})).status_code == 200
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["code"] == ("context_length_exceeded" if (path, body) in TOO_LONG else "validation")
    assert len(fake.jobs) == 1, "only the next request, which is served"


async def test_a_model_that_is_not_there(client: httpx.AsyncClient) -> None:
    for path, body in ((CHAT, SAY), (TEXT, {"prompt": "x"})):
        response = await client.post(path, json={**body, "model": "gpt-4"})
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"


async def test_all_sequences_of_a_request_are_admitted_together(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, naming_prompts()):
        assert (await client.post(TEXT, json={"prompt": ["a"] * 4, "n": 2})).status_code == 200
        refused = await client.post(TEXT, json={"prompt": ["a"] * 4, "n": 3})
    assert refused.status_code == 422
    assert "prompts times `n` must be at most 8" in refused.json()["error"]["message"]


async def test_models(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("x"), "scripted", adapters=["owner/tuned"]):

        async def both() -> bool:
            return len((await client.get("/v1/models")).json()["data"]) == 2

        await eventually(both)
        listed = (await client.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert [(model["id"], model["object"], model["parent"]) for model in listed["data"]] == [
            ("scripted", "model", None),
            ("owner/tuned", "model", "scripted"),
        ]
        assert (await client.get("/v1/models/owner/tuned")).json() == listed["data"][1]
        assert (await client.get("/v1/models/owner%2Ftuned")).json() == listed["data"][1]
        answer = await client.post(TEXT, json={"prompt": "x", "model": "owner/tuned"})
        assert answer.json()["model"] == "owner/tuned"
    assert (await client.get("/v1/models/nobody")).status_code == 404
