"""What clients send to make files and batches, and the rules of OpenAI's API for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, get_args

from pydantic import Field

from common.batches.objects import Endpoint
from common.errors import BadRequest
from common.protocols.json_body import RequestModel

SHORTEST_EXPIRY = 3600
LONGEST_EXPIRY = 2_592_000
"""Seconds: an hour, and thirty days."""
MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)
ANCHOR = "created_at"

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class ExpiresAfter(RequestModel):
    anchor: str
    """When the time begins: always `created_at`, of the file."""
    seconds: int


class BatchCreate(RequestModel):
    """Body of `POST /v1/batches`."""

    input_file_id: Annotated[str, Field(min_length=1)]
    """A file with the purpose `batch`: a request on each line."""
    endpoint: str
    """Of all requests in the file."""
    completion_window: str
    """Time within which they are worked on; what is not done then has expired."""
    metadata: dict[str, str] | None = None
    """Up to 16 words of the caller's own."""
    output_expires_after: ExpiresAfter | None = None
    """When the files with the results go."""

    @property
    def ignored(self) -> list[str]:
        """Paths of the keys that have no effect."""
        expiry = self.output_expires_after
        return [
            *(self.model_extra or {}),
            *(f"output_expires_after.{name}" for name in (expiry.model_extra or {} if expiry else {})),
        ]


def check_batch(body: BatchCreate, windows: Sequence[str]) -> Endpoint:
    """
    Args:
        windows: what `completion_window` may be.

    Returns:
        The endpoint.

    Raises:
        BadRequest: a value breaks a rule; says which.
    """
    endpoint = next((known for known in ENDPOINTS if known == body.endpoint), None)
    if endpoint is None:
        raise BadRequest(f"`endpoint` must be one of {_listed(ENDPOINTS)}")
    if body.completion_window not in windows:
        raise BadRequest(f"`completion_window` must be {'one of ' if len(windows) > 1 else ''}{_listed(windows)}")
    metadata = body.metadata or {}
    if len(metadata) > MAX_METADATA:
        raise BadRequest(f"`metadata` must have at most {MAX_METADATA} keys, given {len(metadata)}")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY:
            raise BadRequest(f"`metadata` must have keys of at most {MAX_METADATA_KEY} characters, given {len(key)}")
        if len(value) > MAX_METADATA_VALUE:
            raise BadRequest(
                f"`metadata` must have values of at most {MAX_METADATA_VALUE} characters, given {len(value)}"
            )
    if (expiry := body.output_expires_after) is not None:
        check_expiry(expiry.anchor, expiry.seconds, "output_expires_after.anchor", "output_expires_after.seconds")
    return endpoint


def check_expiry(anchor: str, seconds: int, anchor_name: str, seconds_name: str) -> None:
    """
    Args:
        anchor_name: what the client calls the anchor.
        seconds_name: what it calls the seconds.

    Raises:
        BadRequest: a value breaks a rule; says which.
    """
    if anchor != ANCHOR:
        raise BadRequest(f"`{anchor_name}` must be '{ANCHOR}'")
    if not SHORTEST_EXPIRY <= seconds <= LONGEST_EXPIRY:
        raise BadRequest(f"`{seconds_name}` must be from {SHORTEST_EXPIRY} to {LONGEST_EXPIRY}, given {seconds}")


def window_seconds(window: str) -> int:
    """Of a completion window as the settings allow it: a number and `s`, `m`, `h` or `d`."""
    return int(window[:-1]) * _UNITS[window[-1]]


def _listed(values: Sequence[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)
