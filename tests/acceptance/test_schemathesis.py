"""Requests made from our own OpenAPI document, good and bad: no 5xx, and every answer is one that is documented.

A few hundred cases, always the same, run with the other tests. `TGQ_SCHEMATHESIS_CASES=5000` makes it that many, and others
each time:

    TGQ_SCHEMATHESIS_CASES=5000 pytest tests/acceptance/test_schemathesis.py
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from common.batches.store import BatchStore
from common.keys import Keys
from common.redis_clients import async_redis
from common.settings import Settings
from ops.local_service import LocalService
from tests.acceptance.native import another_web_node
from tests.contract.recording import events
from web.openapi.document import build_document
from web.routes import DOCUMENTATION, PLAYGROUND, ROUTES

ASKED_FOR = os.environ.get("TGQ_SCHEMATHESIS_CASES")
CASES = int(ASKED_FOR or 300)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
REAL = {"request_id": "nobodys", "model": "scripted", "version": "1", "name": "scripted", "file": "main.js"}
"""Path parameters of things that are there; `url` adds those of a file, a batch and, for its events, one that has ended."""
NEEDED = frozenset(
    (
        *("inputs", "text_input", "prompt", "messages", "parameters"),
        *("file", "purpose", "input_file_id", "endpoint", "completion_window"),
    )
)

DOCUMENT = build_document(Settings(), {**ROUTES, **PLAYGROUND, **DOCUMENTATION})
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = [
    (method, path) for path, methods in DOCUMENT["paths"].items() for method in methods if method != "parameters"
]
POSTED = sum(method == "post" for method, _ in OPERATIONS)


@pytest.fixture(scope="module")
def url(scripted_service: LocalService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A web node that keeps answers short: without a limit in the request they fill the context."""
    short = {"MAX_TOTAL_TOKENS": "160", "MAX_INPUT_TOKENS": "120", "TGQ_DEFAULT_MAX_NEW_TOKENS": "8"}
    folder = {"TGQ_BATCH_STORAGE": str(tmp_path_factory.mktemp("storage"))}
    with another_web_node(scripted_service, short | folder) as (url, _):
        form: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", b"{}")}}
        REAL["file_id"] = httpx.post(f"{url}/v1/files", **form).json()["id"]
        batch = {"input_file_id": REAL["file_id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        REAL["ended_batch_id"] = httpx.post(f"{url}/v1/batches", json=batch).json()["id"]
        asyncio.run(end_batch(scripted_service.redis_url))
        REAL["batch_id"] = httpx.post(f"{url}/v1/batches", json=batch).json()["id"]
        yield url


async def end_batch(redis_url: str) -> None:
    """As a runner does with the only one there is."""
    settings = Settings.of(redis_url=redis_url)
    async with async_redis(settings) as client:
        store = BatchStore(client, Keys(), settings)
        claim = await store.claim("runner", 60)
        assert claim is not None
        await store.update(claim, status="failed")


@st.composite
def likely(draw: st.DrawFn, cases: st.SearchStrategy[Any]) -> Any:
    """Cases with few optional keys and for what is there, which are more often taken."""
    case = draw(cases)
    case.path_parameters = {name: REAL[name] for name in case.path_parameters or {}}
    if case.path.endswith("/events"):
        case.path_parameters = {"batch_id": REAL["ended_batch_id"]}
    if isinstance(case.body, dict):
        case.body = thinned(draw, case.body)
        if "input_file_id" in case.body:
            case.body["input_file_id"] = REAL["file_id"]
        if "messages" in case.body:
            case.body["messages"] = [{"role": "user", "content": draw(st.text(min_size=1))}]
        if isinstance(case.body.get("parameters"), dict):
            case.body["parameters"] = thinned(draw, case.body["parameters"])
    return case


def thinned(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    optional = sorted(body.keys() - NEEDED)
    kept = draw(st.lists(st.sampled_from(optional), max_size=3, unique=True)) if optional else []
    return {key: value for key, value in body.items() if key in NEEDED or key in kept}


def cases_of(method: str, path: str) -> st.SearchStrategy[Any]:
    operation = SCHEMA[path][method.upper()]
    good = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    return st.one_of(likely(good), good, operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda part: part)
def test_answers_are_as_documented(url: str, method: str, path: str) -> None:
    # A GET has little to vary.
    number = math.ceil(CASES / POSTED) if method == "post" else min(math.ceil(CASES / POSTED), 50)

    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        derandomize=ASKED_FOR is None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases_of(method, path), accept=st.sampled_from((None, "text/event-stream")))
    def run(case: Any, accept: str | None) -> None:
        headers = {} if accept is None else {"accept": accept}
        response = case.call(base_url=url, timeout=60, headers=headers)
        if response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
            case.validate_response(response, checks=[not_a_server_error, status_code_conformance])
            check_events(method, path, response.status_code, response.text)
        else:
            case.validate_response(response, checks=CHECKS)

    run()


def check_events(method: str, path: str, status: int, text: str) -> None:
    values, _ = events(text)
    responses = DOCUMENT["paths"][path][method]["responses"]
    for value in values:
        failed = status != 200 or "error" in value
        schema = responses[str(status) if status != 200 else "500" if failed else "200"]
        held = {**schema["content"]["text/event-stream"]["schema"], "components": DOCUMENT["components"]}
        Draft202012Validator(held).validate(value)
