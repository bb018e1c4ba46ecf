"""The validation pass, over files on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.batches.storage import Storage
from common.settings import Settings
from workers.batch.input_file import InputFile
from workers.batch.intake import MOST_ERRORS, Intake
from workers.batch.line_index import LineIndex

CHAT = "/v1/chat/completions"


def request(custom_id: str, content: str = "hello", system: str | None = None, model: str = "m", **body: Any) -> bytes:
    messages = [{"role": "user", "content": content}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    whole = {
        "custom_id": custom_id,
        "method": "POST",
        "url": CHAT,
        "body": {"model": model, "messages": messages} | body,
    }
    return json.dumps(whole).encode()


@pytest.fixture
def index() -> Iterator[LineIndex]:
    index = LineIndex()
    yield index
    index.close()


def taken_in(folder: Path, index: LineIndex, data: bytes, **settings: Any) -> tuple[Intake, InputFile]:
    (folder / "in").write_bytes(data)
    values = Settings.of(batch_storage=str(folder), **settings)
    file = InputFile(Storage(values), "in")
    intake = Intake(file, index, CHAT, values)
    while not intake.finished:
        intake.read_some()
    return intake, file


def told(intake: Intake) -> list[tuple[str, int | None]]:
    return [(error.code, error.line) for error in intake.told_errors()]


def test_lines_are_found_again(tmp_path: Path, index: LineIndex) -> None:
    lines = [request(f"ä{number}") for number in range(2500)]
    intake, file = taken_in(tmp_path, index, b"\n".join(lines))
    assert (intake.total, intake.errors, intake.lanes) == (2500, [], {"m": 0})
    places = list(index.places())
    assert [place.number for place in places] == list(range(1, 2501))
    assert [file.read(place.start, place.length) for place in places] == lines


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n  \n"])
def test_how_a_file_may_end(tmp_path: Path, index: LineIndex, end: bytes) -> None:
    intake, file = taken_in(tmp_path, index, request("a") + b"\r\n" + request("b") + end)
    assert (intake.total, intake.errors) == (2, [])
    assert [file.read(place.start, place.length) for place in index.places()] == [request("a"), request("b")]


def test_a_byte_order_mark_is_no_part_of_a_line(tmp_path: Path, index: LineIndex) -> None:
    intake, file = taken_in(tmp_path, index, b"\xef\xbb\xbf" + request("a") + b"\n" + request("b"))
    assert not intake.errors
    assert [file.read(place.start, place.length) for place in index.places()] == [request("a"), request("b")]


def test_numbers_count_blank_lines(tmp_path: Path, index: LineIndex) -> None:
    intake, _ = taken_in(tmp_path, index, request("a") + b"\n\n" + b"{\n" + request("a"))
    assert told(intake) == [("invalid_json_line", 3), ("duplicate_custom_id", 4)]
    assert intake.errors[-1].message.startswith("Duplicate 'custom_id': it is that of line 1 too")


@pytest.mark.parametrize("data", [b"", b"\n \n", b"\xef\xbb\xbf\n"])
def test_an_empty_file(tmp_path: Path, index: LineIndex, data: bytes) -> None:
    assert told(taken_in(tmp_path, index, data)[0]) == [("empty_file", None)]


def test_too_many_requests(tmp_path: Path, index: LineIndex) -> None:
    data = b"\n".join(request(str(number)) for number in range(6))
    assert told(taken_in(tmp_path, index, data, batch_max_requests=5)[0]) == [("request_limit_exceeded", None)]


def test_a_line_may_be_as_long_as_a_body(tmp_path: Path, index: LineIndex) -> None:
    fits = request("a", "x" * 3000)
    too_long = request("b", "x" * 3001)
    data = fits + b"\r\n" + too_long + b"\n" + request("c", "x" * 100_000) + b"\n" + fits.replace(b'"a"', b'"d"')
    intake, _ = taken_in(tmp_path, index, data, payload_limit=len(fits))
    assert told(intake) == [("line_too_long", 2), ("line_too_long", 3)]
    assert intake.total == 4


def test_the_pass_ends_with_so_many_errors(tmp_path: Path, index: LineIndex) -> None:
    intake, _ = taken_in(tmp_path, index, b"{\n" * 5000)
    assert told(intake) == [("invalid_json_line", line) for line in range(1, MOST_ERRORS + 1)]
    assert intake.total == MOST_ERRORS


def test_duplicates_over_portions(tmp_path: Path, index: LineIndex) -> None:
    lines = [request(str(number)) for number in range(3000)]
    lines[2999] = request("0")
    lines[1500] = request("1")
    assert told(taken_in(tmp_path, index, b"\n".join(lines))[0]) == [
        ("duplicate_custom_id", 1501),
        ("duplicate_custom_id", 3000),
    ]


def test_unknown_models_are_errors_of_their_lines(tmp_path: Path, index: LineIndex) -> None:
    models = ["a", "b", "a", "b", "c"] * 600
    (tmp_path / "in").write_bytes(b"\n".join(request(str(at), model=model) for at, model in enumerate(models)))
    settings = Settings.of(batch_storage=str(tmp_path))
    intake = Intake(InputFile(Storage(settings), "in"), index, CHAT, settings)
    names = intake.read_some()
    assert list(names) == ["a", "b", "c"]
    assert names["b"][:2] == [2, 4]
    intake.refuse_model("b", names["b"][:2], "no b")
    assert intake.read_some() == {}
    found = intake.told_errors()
    assert {(error.code, error.param) for error in found} == {("model_not_found", "body.model")}
    assert [error.line for error in found[:3]] == [2, 4, 1002]


def test_lines_with_one_beginning_are_sent_together(tmp_path: Path, index: LineIndex) -> None:
    lines = [
        request("a1", "one", "System A"),
        request("b1", "two", "System B"),
        request("x", "a question " * 50 + "1"),
        request("a2", "three", "System A"),
        request("other", model="n"),
        request("b2", "four", "System B"),
        request("y", "a question " * 50 + "2"),
        request("tools", "one", "System A", tools=[{"type": "function", "function": {"name": "f"}}]),
        request("a3", "five", "System A"),
    ]
    intake, file = taken_in(tmp_path, index, b"\n".join(lines))
    assert intake.lanes == {"m": 0, "n": 1}
    order = [json.loads(file.read(place.start, place.length))["custom_id"] for place in index.places(0)]
    assert order == ["a1", "a2", "a3", "b1", "b2", "x", "y", "tools"]
    assert [place.number for place in index.places(1)] == [5]


def test_odd_bodies_have_a_place_in_the_order(tmp_path: Path, index: LineIndex) -> None:
    bodies = [{"messages": 5}, {"messages": []}, {"messages": [7]}, {"prompt": ["x"]}, {"model": 5}, {}]
    lines = [
        json.dumps({"custom_id": str(at), "method": "POST", "url": CHAT, "body": body}).encode()
        for at, body in enumerate(bodies)
    ]
    intake, _ = taken_in(tmp_path, index, b"\n".join(lines))
    assert not intake.errors
    assert intake.lanes == {"": 0}
    assert sorted(place.number for place in index.places(0)) == [1, 2, 3, 4, 5, 6]
