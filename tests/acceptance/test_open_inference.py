"""The Open Inference Protocol with the real model: cases K01 to K04, K06, K07."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from common.settings import DEFAULT_MODEL
from ops.local_service import LocalService
from tests.acceptance.clients import http_client

PROMPT = "The capital of France is"
PATH = f"/v2/models/{DEFAULT_MODEL}"


@pytest.fixture
async def client(real_service: LocalService) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(real_service.url) as client:
        yield client


def asked(**parameters: Any) -> dict[str, Any]:
    return {"text_input": PROMPT, "parameters": {"temperature": 0} | parameters}


async def streamed(client: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    text = (await client.post(f"{PATH}/generate_stream", json=body)).text
    return [json.loads(frame.removeprefix("data: ")) for frame in text.removesuffix("\n\n").split("\n\n")]


async def test_k01_names_of_fields_and_of_the_model(client: httpx.AsyncClient) -> None:
    version = f"{PATH}/versions/1/generate"
    answers = [(await client.post(path, json=asked())).json() for path in (f"{PATH}/generate", version)]
    assert answers[0] == answers[1]
    assert set(answers[0]) == {"text_output", "model_name", "model_version"}
    assert (answers[0]["model_name"], answers[0]["model_version"]) == (DEFAULT_MODEL, "1")
    wrong = await client.post(version, json={"inputs": PROMPT})
    assert wrong.status_code == 422
    assert set(wrong.json()) == {"error"}


async def test_k02_defaults_and_ranges(client: httpx.AsyncClient) -> None:
    native = {"inputs": PROMPT, "parameters": {"max_new_tokens": 20, "details": True}}
    greedy = (await client.post("/generate", json=native)).json()
    answer = (await client.post(f"{PATH}/generate", json=asked(details=True))).json()
    assert answer["text_output"] == greedy["generated_text"]
    assert answer["details"]["logprobs"] == greedy["details"]["tokens"]
    assert answer["details"]["seed"] is None
    drawn = asked(details=True, ignore_eos=True, top_p=1, temperature=None)
    details = (await client.post(f"{PATH}/generate", json=drawn)).json()["details"]
    assert (len(details["logprobs"]), details["finish_reason"]) == (20, "length")
    drawn["parameters"]["seed"] = details["seed"]
    assert (await client.post(f"{PATH}/generate", json=drawn)).json()["details"] == details
    assert (await client.post(f"{PATH}/generate", json=asked(max_tokens=0))).status_code == 422
    extra = await client.post(f"{PATH}/generate", json=asked(num_beams=4))
    assert extra.json()["text_output"] == greedy["generated_text"]
    assert extra.headers["x-ignored-parameters"] == "parameters.num_beams"


async def test_k03_k04_a_stream_is_the_answer_in_pieces(client: httpx.AsyncClient) -> None:
    whole = (await client.post(f"{PATH}/generate", json=asked(details=True, max_tokens=12))).json()
    events = await streamed(client, asked(details=True, max_tokens=12))
    assert "".join(event["text_output"] for event in events) == whole["text_output"]
    assert [event["details"]["token"] for event in events] == whole["details"]["logprobs"]
    assert events[-1]["details"]["finish_reason"] == whole["details"]["finish_reason"]
    assert all(
        set(event) == {"text_output", "model_name", "model_version"} for event in await streamed(client, asked())
    )


async def test_k06_models_and_their_readiness(client: httpx.AsyncClient) -> None:
    for path in (PATH, f"{PATH}/versions/1", PATH.replace(DEFAULT_MODEL, DEFAULT_MODEL.replace("/", "%2F"))):
        assert (await client.get(f"{path}/ready")).json() == {"name": DEFAULT_MODEL, "ready": True}
        assert (await client.get(path)).json()["name"] == DEFAULT_MODEL
    for path in ("/v2/models/nope", "/v2/models/nope/ready", f"{PATH}/versions/9/ready"):
        assert (await client.get(path)).status_code == 404


async def test_k07_the_path_decides_whether_it_streams(client: httpx.AsyncClient) -> None:
    response = await client.post(f"{PATH}/generate", json={**asked(), "stream": True})
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-ignored-parameters"] == "stream"
