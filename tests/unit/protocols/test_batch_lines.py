"""What the lines of a batch's files may be, and are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from common.protocols.batch_lines import (
    EXPIRED,
    LineError,
    Response,
    answer_line,
    failure_line,
    number_of,
    read_line,
    result_id,
)

CHAT = "/v1/chat/completions"


def line(**changes: Any) -> bytes:
    whole = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m", "messages": []}} | changes
    return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()


def test_a_request() -> None:
    read = read_line(line(custom_id="é", extra=1), CHAT)
    assert read.custom_id == "é"
    assert json.loads(bytes(read.body)) == {"model": "m", "messages": []}
    assert read.gist.model == "m"


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        (b"", "invalid_json_line", None),
        (b"{", "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (b'"text"', "invalid_json_line", None),
        (b"\xff\xfe", "invalid_json_line", None),
        (line().replace(b'"m"', b'"\xe9"'), "invalid_json_line", None),
        (line().replace(b'"m"', b"NaN"), "invalid_json_line", None),
        (b"[" * 100_000, "invalid_json_line", None),
        (line(custom_id=...), "missing_required_parameter", "custom_id"),
        (line(method=...), "missing_required_parameter", "method"),
        (line(url=...), "missing_required_parameter", "url"),
        (line(body=...), "missing_required_parameter", "body"),
        (line(custom_id=7), "invalid_type", "custom_id"),
        (line(custom_id=None), "invalid_type", "custom_id"),
        (line(custom_id=""), "invalid_value", "custom_id"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/completions"), "invalid_url", "url"),
        (line(body=[]), "invalid_type", "body"),
        (line(body="{}"), "invalid_type", "body"),
        (line(body={"stream": True}), "unsupported_value", "body.stream"),
    ],
)
def test_what_fails_the_batch(text: bytes, code: str, param: str | None) -> None:
    with pytest.raises(LineError) as failed:
        read_line(text, CHAT)
    assert (failed.value.code, failed.value.param) == (code, param)
    assert len(failed.value.message) < 200


@pytest.mark.parametrize("body", [{"stream": False}, {"model": 5}, {"messages": "no"}, {"temperature": "hot"}, {}])
def test_what_is_the_requests_own_error(body: dict[str, Any]) -> None:
    assert json.loads(bytes(read_line(line(body=body), CHAT).body)) == body


def test_an_error_repeats_no_long_values() -> None:
    with pytest.raises(LineError) as failed:
        read_line(line(url="/v1/" + "x" * 10_000), CHAT)
    assert len(failed.value.message) < 200


def test_an_answer() -> None:
    told = answer_line("batch_00ab", 300, "c", Response(422, "r", Raw(b'{"error":{}}')))
    assert told.endswith(b"\n")
    assert json.loads(told) == {
        "id": "batch_req_00ab_12c",
        "custom_id": "c",
        "response": {"status_code": 422, "request_id": "r", "body": {"error": {}}},
        "error": None,
    }
    assert number_of(told) == 300


def test_a_failure() -> None:
    told = failure_line("batch_00ab", 1, "c", EXPIRED)
    assert json.loads(told) == {
        "id": result_id("batch_00ab", 1),
        "custom_id": "c",
        "response": None,
        "error": {
            "code": "batch_expired",
            "message": "This request could not be executed before the completion window expired.",
        },
    }
    assert number_of(told) == 1


def test_other_lines_have_no_number() -> None:
    with pytest.raises(ValueError, match="not a line"):
        number_of(b'{"custom_id":"x","id":"batch_req_00ab_1"}')
