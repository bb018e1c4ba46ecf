"""What clients of the Open Inference Protocol hear."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from common.errors import TgqError


class ErrorResponse(Struct, frozen=True):
    error: str


def error_body(error: TgqError) -> bytes:
    return msgspec.json.encode(ErrorResponse(error.message))
