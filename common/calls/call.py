"""What every call is made of, whichever API it came by: from a parsed request to what is asked for, and on to the answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from common.served_models import ServedModel
from common.tracing.call_span import Operation
from common.validation import Ask, ValidRequest
from common.wire import Tokens


class Origin(Struct, frozen=True):
    """What an answer is made of beside its request and its tokens."""

    created: int
    """Unix seconds."""
    key: str
    """Unguessable."""

    @classmethod
    def new(cls) -> Origin:
        return cls(int(time.time()), secrets.token_hex(12))


class Fold(Protocol):
    """Folds the events of a request, in order: pure, one for each request."""

    def stream_events(self, event: Tokens) -> list[bytes]:
        """The JSON of the stream events that tell these tokens."""

    def body(self, events: Sequence[Tokens]) -> bytes:
        """The JSON of the whole answer."""

    @property
    def generated_tokens(self) -> int:
        """Of the answer, once `body` has made it."""


class Call(Protocol):
    """One parsed request of some API, up to its answer."""

    operation: Operation
    """What it is to those who trace it."""
    model: ServedModel
    stream: bool
    sequences: int
    """To be generated, all prompts and children together."""
    characters: int
    """Of the prompts as they were sent."""
    ignored: list[str]
    """Paths of the keys that had no effect."""
    last: bytes
    """The data of an event that a stream ends with, after its last token; none if empty."""

    async def asks(self) -> Sequence[Ask]:
        """What is asked for, one for each prompt.

        Raises:
            InvalidRequest: a value breaks a rule.
        """

    def fold(self, requests: Sequence[ValidRequest], origin: Origin) -> Fold:
        """Makes the answer to the requests that `asks` became; the same again from the same origin and tokens."""
