"""What a message that cannot become a job is answered with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.errors import TgqError
from common.wire import Failed
from workers.publisher import Outgoing


def refusal(headers: Mapping[str, Any], properties: Mapping[str, Any], error: TgqError) -> list[Outgoing]:
    """The frame for the submitter, as far as the message's headers name one: the body may be unreadable."""
    channel, request, attempt = properties.get("reply_to"), headers.get("id"), headers.get("attempt", 1)
    if not (isinstance(channel, str) and channel and isinstance(request, str) and isinstance(attempt, int)):
        return []
    return [Outgoing(channel, request, attempt, Failed(error.error_type, error.message))]
