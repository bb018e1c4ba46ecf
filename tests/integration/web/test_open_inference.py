"""The Open Inference Protocol over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from common import __version__
from tests.integration.client.fake_worker import accept_and_hang, until
from tests.integration.web.serving import events, eventually, failing_after, saying, worker

MODEL = {"model_name": "scripted", "model_version": "1"}
GENERATE = "/v2/models/scripted/generate"
STREAM = "/v2/models/scripted/generate_stream"


def said(text: str) -> list[dict[str, Any]]:
    ends = [{"text_output": "", **MODEL}]
    return [{"text_output": character, **MODEL} for character in text] + ends


async def test_generate(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("Hé!")) as fake:
        for path in (GENERATE, "/v2/models/scripted/versions/1/generate", "/v2/models/tgi/generate"):
            response = await client.post(path, json={"text_input": "Say"})
            assert response.status_code == 200
            assert response.json() == {"text_output": "Hé!", **MODEL}
    for job in fake.jobs.values():
        assert len(job.prompt_ids) == 3
        assert job.parameters.max_new_tokens == 20
        assert job.parameters.sample
    assert len(fake.jobs) == 3


async def test_generate_stream(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("Hé!")):
        for path in (STREAM, "/v2/models/scripted/versions/1/generate_stream"):
            response = await client.post(path, json={"text_input": "Say"})
            assert response.headers["content-type"].startswith("text/event-stream")
            assert events(response.text) == said("Hé!")
        detailed = await client.post(STREAM, json={"text_input": "Say", "parameters": {"details": True}})
    details = [event["details"] for event in events(detailed.text)]
    assert [detail["token"]["text"] for detail in details] == ["H", "é", "!", "<end>"]
    assert [detail["finish_reason"] for detail in details] == [None, None, None, "eos_token"]


async def test_details_of_a_whole_answer(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("ok")):
        response = await client.post(GENERATE, json={"text_input": "x", "parameters": {"details": True, "seed": 4}})
    details = response.json()["details"]
    assert details["finish_reason"] == "eos_token"
    assert [token["text"] for token in details["logprobs"]] == ["o", "k", "<end>"]
    assert set(details["logprobs"][0]) == {"id", "text", "logprob", "special"}
    assert (details["generated_tokens"], details["seed"]) == (3, 4)


async def test_headers_are_those_of_native_routes(client: httpx.AsyncClient, redis_url: str) -> None:
    body = {"text_input": "Say", "stream": True, "parameters": {"num_beams": 2}}
    async with worker(redis_url, saying("ok")):
        response = await client.post(GENERATE, json=body)
        streamed = await client.post(STREAM, json=body)
    assert response.json() == {"text_output": "ok", **MODEL}
    timings = {"compute", "total", "validation", "queue", "inference"}
    assert all(float(response.headers[f"x-{name}-time"]) >= 0 for name in timings)
    assert int(response.headers["x-time-per-token"]) >= 0
    assert response.headers["x-prompt-tokens"] == "3"
    assert response.headers["x-generated-tokens"] == "3"
    for answer in (response, streamed):
        assert answer.headers["x-compute-characters"] == "3"
        assert answer.headers["x-compute-type"]
        assert answer.headers["x-ignored-parameters"] == "stream, parameters.num_beams"


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"inputs": "Hi"}, 422, "`text_input`"),
        ({"text_input": ""}, 422, "`text_input`"),
        ({"text_input": "x" * 300}, 422, "`text_input`"),
        ({"text_input": "x", "parameters": {"max_tokens": 0}}, 422, "max_tokens"),
        ({"text_input": "x", "parameters": {"max_tokens": 1000}}, 422, "`max_tokens`"),
        ({"text_input": "x", "parameters": {"temperature": -1}}, 422, "temperature"),
        ({"text_input": "x", "parameters": {"adapter_id": "nobody"}}, 422, "`adapter_id`"),
    ],
)
async def test_refusals_have_the_protocols_form(
    client: httpx.AsyncClient, redis_url: str, path: str, body: Any, status: int, said: str
) -> None:
    async def seen() -> bool:
        return "its-own" in (await client.get("/v2/models")).json()["models"]

    async with worker(redis_url, saying("ok"), adapters=["its-own"]) as fake:
        await eventually(seen)  # what was said of workers before may stand for half a second
        response = await client.post(path, json=body)
    assert response.status_code == status
    assert list(response.json()) == ["error"]
    assert said in response.json()["error"]
    assert not fake.jobs


async def test_errors_of_the_service_have_the_protocols_form(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, failing_after(2)):
        whole = await client.post(GENERATE, json={"text_input": "x"})
        streamed = await client.post(STREAM, json={"text_input": "x"})
    assert whole.status_code == 424
    assert list(whole.json()) == ["error"]
    *told, error = events(streamed.text)
    assert [event["text_output"] for event in told] == ["x", "x"]
    assert list(error) == ["error"]
    for response in (
        await client.post(GENERATE, content=b"{", headers={"content-type": "application/json"}),
        await client.post(GENERATE, content=b"{}", headers={"content-type": "text/plain"}),
        await client.get(GENERATE),
        await client.post("/v2/models/scripted/infer", json={}),
        await client.get("/v2/nothing"),
    ):
        assert response.status_code in (400, 404, 405, 415)
        assert list(response.json()) == ["error"]


@pytest.mark.parametrize("model", ["nobody", "nobody/nothing", "nobody%2Fnothing", "/a/b"])
@pytest.mark.parametrize("version", ["", "/versions/1"])
async def test_unknown_models_are_not_there(
    client: httpx.AsyncClient, redis_url: str, model: str, version: str
) -> None:
    async with worker(redis_url, saying("ok")) as fake:
        path = f"/v2/models/{model}{version}"
        posted = [
            await client.post(f"{path}/{way}", json={"text_input": "x"}) for way in ("generate", "generate_stream")
        ]
        for response in [*posted, await client.get(path), await client.get(f"{path}/ready")]:
            assert response.status_code == 404
            name = model.replace("%2F", "/")
            assert response.json() == {"error": f"The model `{name}` does not exist"}
    assert not fake.jobs


async def test_unknown_versions_are_not_there(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("ok")):
        path = "/v2/models/scripted/versions/2"
        posted = await client.post(f"{path}/generate", json={"text_input": "x"})
        for response in (posted, await client.get(path), await client.get(f"{path}/ready")):
            assert response.status_code == 404
            assert response.json() == {"error": "The model `scripted` has no version `2`; there are: `1`"}


async def test_what_the_server_and_its_model_are(client: httpx.AsyncClient, redis_url: str) -> None:
    async def ready() -> bool:
        return (await client.get("/v2/health/ready")).status_code == 200

    async with worker(redis_url, saying("ok")):
        await eventually(ready)  # what was said of workers before may stand for half a second
        server = (await client.get("/v2")).json()
        assert server == {"name": "tgq", "version": __version__, "extensions": ["generate"]}
        assert (await client.get("/v2/models")).json() == {"models": ["scripted"]}
        for path in ("/v2/models/scripted", "/v2/models/scripted/versions/1"):
            metadata = (await client.get(path)).json()
            assert (metadata["name"], metadata["versions"], metadata["platform"]) == ("scripted", ["1"], "tgq")
            assert [tensor["name"] for tensor in metadata["inputs"] + metadata["outputs"]] == [
                "text_input",
                "text_output",
            ]
            assert (await client.get(f"{path}/ready")).json() == {"name": "scripted", "ready": True}
        assert (await client.get("/v2/health/ready")).json() == {"ready": True}
        assert (await client.head("/v2/health/ready")).content == b""


async def test_a_node_without_workers_lives_but_is_not_ready(client: httpx.AsyncClient, redis_url: str) -> None:
    async def not_ready() -> bool:
        return (await client.get("/v2/health/ready")).status_code == 503

    await eventually(not_ready)  # what an earlier worker said may stand for half a second
    for path in ("/v2/health/ready", "/v2/models/scripted/ready", "/v2/models/scripted/versions/1/ready"):
        response = await client.get(path)
        assert response.status_code == 503
        assert response.json() == {"error": "unhealthy"}
        assert int(response.headers["retry-after"]) >= 1
    live = await client.get("/v2/health/live")
    assert (live.status_code, live.json()) == (200, {"live": True})


async def test_a_client_that_leaves_ends_its_request(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, accept_and_hang) as fake:
        async with client.stream("POST", STREAM, json={"text_input": "x"}) as response:
            assert response.status_code == 200
            await until(lambda: fake.running == 1)
        await until(lambda: fake.running == 0)


async def test_the_key_is_wanted(guarded: httpx.AsyncClient) -> None:
    for path in (GENERATE, STREAM, "/v2/models/a/b/versions/1/generate"):
        response = await guarded.post(path, json={"text_input": "x"})
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert list(response.json()) == ["error"]
    assert (await guarded.get("/v2/health/live")).status_code == 200
