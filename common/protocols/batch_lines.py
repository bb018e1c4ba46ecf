"""The lines of a batch's files: requests in the input, answers in the output, failures in the error file. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

METHOD = "POST"
_LONGEST_SHOWN = 64
"""Characters of a caller's value that an error repeats."""


class LineError(Exception):
    """A line is wrong in a way that fails its whole batch."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        self.code, self.message, self.param = code, message, param
        super().__init__(message)


class Gist(Struct, frozen=True, gc=False):
    """What of a body matters before its request is read."""

    model: Any = None
    stream: Any = None
    messages: Raw = Raw()
    prompt: Raw = Raw()
    tools: Raw = Raw()


class RequestLine(Struct, frozen=True, gc=False):
    """One line of an input file."""

    custom_id: str
    body: Raw
    gist: Gist


class _Line(Struct, gc=False):
    custom_id: str | UnsetType = UNSET
    method: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    body: Raw | UnsetType = UNSET


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_gist = msgspec.json.Decoder(Gist).decode
_WRONG_TYPE = re.compile(r"^(Expected `\w+`.*) - at `\$\.(\w+)`$")


def read_line(line: bytes, endpoint: str) -> RequestLine:
    """
    Args:
        endpoint: of the batch, which every line must be for.

    Raises:
        LineError: says what is wrong.
    """
    try:
        line.decode()  # What is not looked into is not looked at by the decoder either.
        read = _decode_line(line)
    except msgspec.ValidationError as error:
        wrong = _WRONG_TYPE.match(str(error))
        if wrong is None:
            raise LineError("invalid_json_line", "This line is not a JSON object.") from None
        raise LineError("invalid_type", f"Invalid type for '{wrong[2]}': {wrong[1].lower()}.", wrong[2]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise LineError("invalid_json_line", "This line is not parseable as valid JSON.") from None
    custom_id, body = read.custom_id, read.body
    if custom_id is UNSET or read.method is UNSET or read.url is UNSET or body is UNSET:
        name = next(name for name in _Line.__struct_fields__ if getattr(read, name) is UNSET)
        raise LineError("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    if not custom_id:
        raise LineError("invalid_value", "Invalid value for 'custom_id': must not be empty.", "custom_id")
    if read.method != METHOD:
        raise LineError("invalid_method", f"Invalid method '{_short(read.method)}': must be '{METHOD}'.", "method")
    if read.url != endpoint:
        raise LineError(
            "invalid_url", f"Invalid url '{_short(read.url)}': must be '{endpoint}', the batch's endpoint.", "url"
        )
    try:
        gist = _decode_gist(body)
    except (msgspec.DecodeError, RecursionError):
        raise LineError("invalid_type", "Invalid type for 'body': expected `object`.", "body") from None
    if gist.stream is True:
        raise LineError(
            "unsupported_value", "Unsupported value for 'body.stream': a batch has no streams.", "body.stream"
        )
    return RequestLine(custom_id, body, gist)


class Failure(Struct, frozen=True):
    """Why a request never had an answer."""

    code: str
    message: str


CANCELLED = Failure("batch_cancelled", "This request was not executed because its batch was cancelled.")
EXPIRED = Failure("batch_expired", "This request could not be executed before the completion window expired.")
FAILED = Failure("batch_failed", "This request was not executed because its batch failed.")


class Response(Struct, frozen=True):
    status_code: int
    request_id: str
    body: Raw


class ResultLine(Struct, frozen=True):
    """One line of an output or error file."""

    id: str
    """The number of its line in the input is part of it: see `result_id`."""
    custom_id: str
    response: Response | None
    error: Failure | None


_encode = msgspec.json.Encoder().encode
_RESULT_ID = re.compile(rb'^\{"id":"batch_req_[0-9a-z]*_([0-9a-f]+)"')


def result_id(batch: str, number: int) -> str:
    """
    Args:
        batch: its id.
        number: of the line in the input file, from 1.
    """
    return f"batch_req_{batch.removeprefix('batch_')}_{number:x}"


def answer_line(batch: str, number: int, custom_id: str, response: Response) -> bytes:
    """The line of a request that was answered, be it with an error; ends with a newline."""
    return _encode(ResultLine(result_id(batch, number), custom_id, response, None)) + b"\n"


def failure_line(batch: str, number: int, custom_id: str, failure: Failure) -> bytes:
    """The line of a request that was not."""
    return _encode(ResultLine(result_id(batch, number), custom_id, None, failure)) + b"\n"


def number_of(line: bytes) -> int:
    """The number of the input line that a result line of ours is for.

    Raises:
        ValueError: it is none of ours.
    """
    found = _RESULT_ID.match(line)
    if found is None:
        raise ValueError("not a line of a batch's results")
    return int(found[1], 16)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
