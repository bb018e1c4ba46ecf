"""Every operation, status, schema, property, enumeration and header of the four contracts, held against live answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from ops.local_service import LocalService
from tests.acceptance.native import more_web_nodes, script, until
from tests.contract.contracts import NAMES, Operation, Schema, any_of, components, operations, validator
from tests.contract.coverage import Coverage, Part, names, parts, shown
from tests.contract.deviations import COMPONENTS, NEVER_ANSWERED, NEVER_SEEN, NEVER_TAKEN, RESPONSES, UNUSED
from tests.contract.exchanges import EXCHANGES
from tests.contract.recording import Answer, Node, Nodes

OPERATIONS = list(operations())
STATUSES = [(operation, status) for operation in OPERATIONS for status in operation.responses]
ANSWERS = [(operation, status, media) for operation, status in STATUSES for media in operation.content(status) or [""]]
NAMED = [pytest.param(*answer, id=f"{answer[0].name} {answer[1]} {answer[2]}".strip()) for answer in ANSWERS]


@pytest.fixture(scope="module")
def answers(scripted_service: LocalService) -> Iterator[list[Answer]]:
    """All exchanges made, once."""
    flat = {"TGQ_ERROR_FORMAT": "tgi"}
    narrow = {**flat, "MAX_CONCURRENT_REQUESTS": "1"}
    with more_web_nodes(scripted_service, flat, narrow, {"TGQ_KEY_PREFIX": "nobody"}) as nodes_beside:
        flat_url, narrow_url, lonely_url = (url for url, _ in nodes_beside)
        urls: dict[Node, str] = {
            "usual": scripted_service.url,
            "flat": flat_url,
            "full": narrow_url,
            "alone": lonely_url,
        }
        with Nodes(urls) as nodes:
            made = [nodes.exchanged(exchange) for exchange in EXCHANGES if exchange.node != "full"]
            with occupied(narrow_url):
                made += [nodes.exchanged(exchange) for exchange in EXCHANGES if exchange.node == "full"]
        yield made


@contextmanager
def occupied(url: str) -> Iterator[None]:
    """The only place of a node is taken by a stream that goes on until the block ends."""
    body = {"inputs": script("slow ", repeat=1000, step_ms=50), "parameters": {"max_new_tokens": 1000}}
    with httpx.Client(timeout=60, trust_env=False) as client:

        def taken() -> httpx.Response | None:
            response = client.send(client.build_request("POST", f"{url}/generate_stream", json=body), stream=True)
            if response.status_code == 200:
                return response
            response.close()  # the requests before, at any node, leave their places a moment after their answers
            return None

        response = until(taken, "the place to be free")
        try:
            yield
        finally:
            response.close()


def schemas(contract: str) -> dict[str, Schema]:
    """The contract's components with our deviations in their places."""
    instead = {name: deviation.schema for (of, name), deviation in COMPONENTS.items() if of == contract}
    return {**components(contract), **instead}


def answer_schema(operation: Operation, status: int, media: str) -> Schema:
    deviation = RESPONSES.get((operation.name, status, media))
    return deviation.schema if deviation is not None else operation.content(status)[media]


def checker(operation: Operation, status: int, media: str) -> Draft202012Validator:
    return validator(schemas(operation.contract), answer_schema(operation, status, media))


def error_checker(operation: Operation) -> Draft202012Validator | None:
    """For the event that an error after the first token is."""
    status = next((status for status in (424, 422, 400) if status in operation.responses), None)
    if status is None:
        return None
    return checker(operation, status, next(iter(operation.content(status))))


@pytest.mark.parametrize(("operation", "status", "media"), NAMED)
def test_answers(answers: list[Answer], operation: Operation, status: int, media: str) -> None:
    found = [
        answer
        for answer in answers
        if answer.of(operation) and answer.exchange.status == status and answer.media == media
    ]
    reason = NEVER_ANSWERED.get((operation.name, status))
    if reason is not None:
        assert not found, f"answered after all: {reason}"
        pytest.skip(reason)
    assert found, "nothing asked for this answer"
    headers = operation.responses[status].get("headers", {})
    for answer in found:
        check_headers(answer, headers)
        if media:
            check = checker(operation, status, media)
            for value in answer.values:
                late_error = answer.streamed and status == 200 and "error" in value
                held = error_checker(operation) if late_error else check
                assert held is not None
                errors = [error.message[:300] for error in held.iter_errors(value)]
                assert not errors, f"{answer.exchange.body}: {shown(value)}"


def check_headers(answer: Answer, headers: dict[str, Any]) -> None:
    for name, header in headers.items():
        given = answer.response.headers.get(name)
        assert given is not None, f"{answer.exchange} has no {name}"
        match header["schema"]["type"]:
            case "integer":
                assert given == str(int(given)), name
            case "number":
                assert float(given) >= 0, name


def seen(answers: list[Answer], contract: str) -> set[Part]:
    """Parts of the contract's schemas that the answers have."""
    coverage = Coverage(schemas(contract))
    for operation, status, media in ANSWERS:
        if operation.contract == contract and media:
            for answer in answers:
                if answer.of(operation) and (answer.exchange.status, answer.media) == (status, media):
                    for value in answer.values:
                        if not (answer.streamed and "error" in value and status == 200):
                            coverage.visit(answer_schema(operation, status, media), value)
    return coverage.seen


def taken(answers: list[Answer], contract: str) -> set[Part]:
    """Parts of the contract's request schemas that were accepted."""
    # Some alternatives of requests do not exclude each other although they say so.
    coverage = Coverage(any_of(components(contract)))
    for operation in OPERATIONS:
        if operation.contract == contract and operation.body is not None:
            for answer in answers:
                if answer.of(operation) and answer.exchange.status == 200:
                    coverage.visit(any_of(operation.body), answer.exchange.body)
    return coverage.seen


@pytest.mark.parametrize("contract", NAMES)
def test_every_part_of_every_answer_is_seen(answers: list[Answer], contract: str) -> None:
    known = schemas(contract)
    wanted = {
        part
        for operation, status, media in ANSWERS
        if operation.contract == contract and media and (operation.name, status) not in NEVER_ANSWERED
        for part in parts(known, answer_schema(operation, status, media))
    }
    listed = set(NEVER_SEEN.get(contract, {}))
    assert wanted - seen(answers, contract) == listed


@pytest.mark.parametrize("contract", NAMES)
def test_every_part_of_every_request_is_taken(answers: list[Answer], contract: str) -> None:
    wanted = {
        part
        for operation in OPERATIONS
        if operation.contract == contract and operation.body is not None
        for part in parts(components(contract), operation.body)
    }
    listed = set(NEVER_TAKEN.get(contract, {}))
    assert wanted - taken(answers, contract) == listed


@pytest.mark.parametrize("contract", NAMES)
def test_every_schema_is_used(contract: str) -> None:
    known = schemas(contract)
    used: set[str] = set()
    for operation, status, media in ANSWERS:
        if operation.contract == contract and media:
            used |= names(known, answer_schema(operation, status, media))
    for operation in OPERATIONS:
        if operation.contract == contract and operation.body is not None:
            used |= names(known, operation.body)
    assert set(components(contract)) - used == set(UNUSED.get(contract, {}))


def test_every_deviation_is_needed(answers: list[Answer]) -> None:
    """Some answer breaks what the contract itself says there."""

    def broken(operation: Operation, status: int, media: str, known: dict[str, Schema], schema: Schema) -> bool:
        check = validator(known, schema)
        return any(
            not check.is_valid(value)
            for answer in answers
            if answer.of(operation) and (answer.exchange.status, answer.media) == (status, media)
            for value in answer.values
        )

    for name, status, media in RESPONSES:
        operation = next(operation for operation in OPERATIONS if operation.name == name)
        assert broken(operation, status, media, schemas(operation.contract), operation.content(status)[media]), name
    for contract, component in COMPONENTS:
        if component not in components(contract):
            continue
        known = {**schemas(contract), component: components(contract)[component]}
        assert any(
            broken(operation, status, media, known, answer_schema(operation, status, media))
            for operation, status, media in ANSWERS
            if operation.contract == contract and media
        ), (contract, component)


def test_streams_end_with_done_where_openai_does_and_nowhere_else(answers: list[Answer]) -> None:
    streams = [answer for answer in answers if answer.streamed and answer.exchange.status == 200]
    assert streams
    for answer in streams:
        failed = "error" in answer.values[-1]
        assert failed == answer.exchange.fails_late, answer.exchange
        assert answer.done == (answer.exchange.path.startswith("/v1") and not failed), answer.exchange
