"""Bodies whose shape would cost more than anybody means by them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.errors import InvalidRequest, MalformedBody, TgqError
from common.protocols.json_body import MAX_DEPTH, MAX_VALUES, RequestModel, parse_body


class Message(RequestModel):
    role: str


class Body(RequestModel):
    inputs: str | list[int] | list[str] | None = None
    ids: list[int] | None = None
    messages: list[Message] | None = None


def refused(body: bytes) -> TgqError:
    with pytest.raises(TgqError) as caught:
        parse_body(Body, body)
    assert len(caught.value.message) < 300
    return caught.value


def nested(levels: int, opening: str = "[", closing: str = "]") -> bytes:
    return ('{"x":' + opening * levels + "1" + closing * levels + "}").encode()


def test_depth() -> None:
    assert parse_body(Body, nested(MAX_DEPTH - 1)).model_extra
    assert f"deeper than {MAX_DEPTH} levels" in refused(nested(MAX_DEPTH)).message
    assert f"deeper than {MAX_DEPTH} levels" in refused(nested(MAX_DEPTH, '{"a":', "}")).message
    assert "nested too deeply" in refused(nested(900_000)).message
    # Brackets in a text are no levels.
    assert parse_body(Body, json.dumps({"inputs": "[{" * 1000}).encode()).inputs == "[{" * 1000


def test_as_many_numbers_as_there_is_room_for() -> None:
    ids = [12345] * 280_000
    assert parse_body(Body, json.dumps({"ids": ids}).encode()).ids == ids


def test_the_number_of_values_in_arrays() -> None:
    assert len(str(parse_body(Body, json.dumps({"inputs": ["a"] * MAX_VALUES}).encode()).inputs)) > MAX_VALUES
    for value in ("a", [], [1], None):
        error = refused(json.dumps({"x": [value] * (MAX_VALUES + 1)}).encode())
        assert isinstance(error, MalformedBody)
        assert f"more than {MAX_VALUES} values" in error.message
    assert "values" in refused(json.dumps({"x": [["a"] * 1000] * 51}).encode()).message


def test_the_number_of_values_in_objects() -> None:
    # The body's own object counts as well.
    parse_body(Body, json.dumps({str(i): i for i in range(MAX_VALUES - 1)}).encode())
    wide: list[dict[str, Any]] = [{str(i): i for i in range(MAX_VALUES)}, {"messages": [{}] * MAX_VALUES}]
    for data in wide:
        error = refused(json.dumps(data).encode())
        assert isinstance(error, MalformedBody)
        assert f"objects hold more than {MAX_VALUES} values" in error.message


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"ids": ["a"] * 40_000}, "`ids.0`"),
        ({"ids": [1.5] * 300_000}, "`ids.0`"),
        ({"inputs": [1.5] * 300_000}, "`inputs"),
        ({"messages": [1] * 600_000}, "`messages.0`"),
        ({"messages": [{"role": 1}] * 20_000}, "`messages.0.role`"),
    ],
)
def test_one_wrong_item_is_enough(data: Any, named: str) -> None:
    error = refused(json.dumps(data).encode())
    assert isinstance(error, InvalidRequest)
    assert named in error.message
    assert error.message.count("`") <= 6
