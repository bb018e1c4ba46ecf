"""From the bytes of a request body to a checked pydantic model, with errors that name field and reason.

Typing is TGI's (serde): no coercion at all ("5" is no number, 10.0 and true are no integers) save that a float takes an
integer; unknown keys are kept apart (`model_extra`) and have no effect. One thing is more lenient: an explicit null means that the key is absent.
"""

from __future__ import annotations

import json
import struct
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError

from common.errors import InvalidRequest, MalformedBody

_MESSAGES = {
    "missing": "is required",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "float_type": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
}
_ERRORS_SHOWN = 3

MAX_DEPTH = 100
"""Levels of arrays and objects within each other."""
MAX_VALUES = 50_000
"""Values in all objects of a body, and as many in all its arrays, numbers there not counted."""
_MIN_BYTES_OF_MANY = 2 * MAX_VALUES
"""A body has to be this long to hold so many."""


def _single_precision(value: float) -> float:
    try:
        (narrow,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        narrow = float("inf")
    if narrow - narrow != 0:  # infinite or not a number
        raise PydanticCustomError("float_type", "must be a finite number")
    return float(narrow)


Float32 = Annotated[float, AfterValidator(_single_precision)]
"""A float held in single precision, as TGI holds it: `1e-50` is 0 and refused where 0 is."""
UInt32 = Annotated[int, Field(ge=0, lt=2**32)]
Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
UInt64 = Annotated[int, Field(ge=0, lt=2**64)]


def _give_lists_up_early(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for part in schema.values():
            _give_lists_up_early(part)
    elif isinstance(schema, (list, tuple)):
        for part in schema:
            _give_lists_up_early(part)


class RequestModel(BaseModel):
    """Base of every request body. A list is given up at its first wrong item, for a body may hold a million."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _give_lists_up_early(schema)
        return schema

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


Model = TypeVar("Model", bound=RequestModel)


def parse_body(model: type[Model], body: bytes) -> Model:
    """Decode and check a body.

    Raises:
        MalformedBody: not JSON, or JSON with NaN, lone surrogates, repeated keys, too deep or of too many values.
        InvalidRequest: JSON of another shape; names the field's path, never its value.
    """
    data = _decode(body)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=True, include_input=False)
        raise InvalidRequest("; ".join(_describe(detail) for detail in details[:_ERRORS_SHOWN])) from None


def _decode(body: bytes) -> Any:
    try:
        # Python's parser sees repeated keys, and objects as they come; msgspec refuses what it lets pass (NaN, lone
        # surrogates).
        data = json.loads(body, object_pairs_hook=_ObjectReader())
        msgspec.json.decode(body)
    except RecursionError:
        raise MalformedBody("Failed to parse the request body as JSON: it is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise MalformedBody(f"Failed to parse the request body as JSON: {error}") from None
    if len(body) > _MIN_BYTES_OF_MANY or body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_shape(data)
    return data


class _ObjectReader:
    """Makes the objects of one body and counts what is in them."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._left -= 1 + len(pairs)
        if self._left < 0:
            raise ValueError(f"its objects hold more than {MAX_VALUES} values")
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("an object has the same key twice")
        return result


def _check_shape(data: Any) -> None:
    """Refuse what is nested too deeply, and lists with more texts, lists and objects than anyone means. Numbers may be as
    many as the body has room for: prompts may be token ids."""
    left = MAX_VALUES
    level = [data]
    depth = 0
    while level:
        if depth == MAX_DEPTH:
            raise MalformedBody(
                f"Failed to parse the request body as JSON: it is nested deeper than {MAX_DEPTH} levels"
            )
        below: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                below += [value for value in part.values() if isinstance(value, (dict, list))]
            elif isinstance(part, list):
                others = [value for value in part if not isinstance(value, (int, float))]
                left -= len(others)
                if left < 0:
                    raise MalformedBody(
                        f"Failed to parse the request body as JSON: its arrays hold more than {MAX_VALUES} values that are "
                        "no numbers"
                    )
                below += [value for value in others if isinstance(value, (dict, list))]
        level = below
        depth += 1


def _describe(detail: ErrorDetails) -> str:
    path = ".".join(str(part) for part in detail["loc"]) or "body"
    context = detail.get("ctx", {})
    match detail["type"]:
        case "greater_than_equal":
            reason = f"must be at least {context['ge']}"
        case "less_than":
            reason = f"must be less than {context['lt']}"
        case "literal_error":
            reason = f"must be {context['expected']}"
        case kind:
            reason = _MESSAGES.get(kind) or detail["msg"]
    return f"`{path}`: {reason}"
