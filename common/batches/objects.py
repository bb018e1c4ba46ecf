"""Files and batches as OpenAI's API tells them, with its names and in its order of states.

All times are Unix seconds. What is not known (yet) is null, as clients expect it.
"""

from __future__ import annotations

import secrets
import time
from typing import Literal

from msgspec import Struct

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
FilePurpose = Literal["batch", "batch_output"]
Endpoint = Literal["/v1/chat/completions", "/v1/completions"]

OPEN_STATUSES: frozenset[BatchStatus] = frozenset(("validating", "in_progress", "finalizing", "cancelling"))
"""Those in which a batch still wants a runner; the others are its end."""

FILE_PREFIX = "file-"
BATCH_PREFIX = "batch_"


class FileObject(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: FilePurpose
    status: Literal["uploaded", "processed", "error"] = "processed"
    status_details: str | None = None


class BatchError(Struct, frozen=True):
    """What is wrong with the input as a whole."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    """Of the input file, from 1."""


class BatchErrors(Struct, frozen=True):
    data: list[BatchError]
    object: Literal["list"] = "list"


class Counts(Struct, frozen=True):
    """Of a batch's requests."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class InputTokensDetails(Struct, frozen=True):
    cached_tokens: int = 0


class OutputTokensDetails(Struct, frozen=True):
    reasoning_tokens: int = 0


class BatchUsage(Struct, frozen=True, kw_only=True):
    """Tokens of all answers of a batch together."""

    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int = 0

    @classmethod
    def of(cls, input_tokens: int, output_tokens: int, *, cached: int = 0) -> BatchUsage:
        return cls(
            input_tokens=input_tokens,
            input_tokens_details=InputTokensDetails(cached),
            output_tokens=output_tokens,
            total_tokens=input_tokens + output_tokens,
        )

    def __add__(self, other: BatchUsage) -> BatchUsage:
        return BatchUsage.of(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            cached=self.input_tokens_details.cached_tokens + other.input_tokens_details.cached_tokens,
        )


class BatchObject(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: Endpoint
    model: str | None = None
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus = "validating"
    output_file_id: str | None = None
    """Absent when no request succeeded."""
    error_file_id: str | None = None
    """Absent when none failed."""
    created_at: int
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = Counts()
    usage: BatchUsage | None = None
    metadata: dict[str, str] | None = None

    @property
    def open(self) -> bool:
        """Whether it has not come to its end."""
        return self.status in OPEN_STATUSES


class FileList(Struct, frozen=True, kw_only=True):
    """A page of files; the next one is what comes after the last of them."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(Struct, frozen=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class BatchList(Struct, frozen=True, kw_only=True):
    """A page of batches; the next one is what comes after the last of them."""

    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchRequest(Struct, frozen=True, kw_only=True):
    """What a runner has to know of a batch beside what its owner is told."""

    output_expires_after: int | None = None
    """Seconds after which its result files go; None for the setting."""
    weight: float = 1.0
    """Of the key that made it: its share of busy workers."""
    models: list[str] | None = None
    """Those the key is for; None for all."""


class Part(Struct, frozen=True, kw_only=True):
    """An object in storage with some of a batch's results, written whole before it is registered and never changed."""

    name: str
    """In storage; of one batch alone, and never used twice."""
    kind: Literal["output", "error"]
    bytes: int
    lines: int


def new_file_id() -> str:
    return FILE_PREFIX + _new_id()


def new_batch_id() -> str:
    return BATCH_PREFIX + _new_id()


def _new_id() -> str:
    """Unguessable, and later ones come after earlier ones in the order of strings, which lists are told in."""
    return f"{time.time_ns() // 1000:014x}{secrets.token_hex(10)}"
