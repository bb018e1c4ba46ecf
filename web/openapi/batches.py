"""OpenAI's files and batches."""

from __future__ import annotations

from typing import Any

from common.batches.objects import BatchList, BatchObject, FileDeleted, FileList, FileObject
from common.errors import (
    BadRequest,
    BodyTimeout,
    IdempotencyConflict,
    MalformedBody,
    PayloadTooLarge,
    ServiceUnavailable,
    StorageUnavailable,
    UnknownBatch,
    UnknownFile,
    UnsupportedMediaType,
)
from common.protocols.openai_batch_request import ANCHOR, ENDPOINTS, LONGEST_EXPIRY, SHORTEST_EXPIRY, BatchCreate
from web.openapi.operation import Errors, Operation
from web.resources import batches, files
from web.upload import ANCHOR_FIELD, LONGEST_NAME, PURPOSE, SECONDS_FIELD

TAG = "OpenAI batches"

_BODY_ERRORS: Errors = (MalformedBody, BodyTimeout, PayloadTooLarge, UnsupportedMediaType, BadRequest)
_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "file": {
            "type": "string",
            "format": "binary",
            "description": f"With a name of at most {LONGEST_NAME} characters; a request on each line.",
        },
        "purpose": {"type": "string", "enum": [PURPOSE]},
        ANCHOR_FIELD: {"type": "string", "enum": [ANCHOR]},
        SECONDS_FIELD: {
            "type": "integer",
            "minimum": SHORTEST_EXPIRY,
            "maximum": LONGEST_EXPIRY,
            "description": "After which the file goes; 30 days without it, unless the service is set up otherwise.",
        },
    },
    "required": ["file", "purpose"],
}


def _number(what: str, default: int, most: int) -> dict[str, Any]:
    return {"description": what, "schema": {"type": "integer", "minimum": 1, "maximum": most, "default": default}}


def _after(pattern: str) -> dict[str, Any]:
    return {"description": "The page begins behind this id.", "schema": {"type": "string", "pattern": pattern}}


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("/v1/files", "post"): Operation(
        id="upload_file",
        tag=TAG,
        summary="Send a file of requests",
        form=_FORM,
        answer=FileObject,
        headers=("x-ignored-parameters",),
        errors=(*_BODY_ERRORS, StorageUnavailable, ServiceUnavailable),
    ),
    ("/v1/files", "get"): Operation(
        id="files",
        tag=TAG,
        summary="The caller's files",
        query={
            "purpose": {"description": "Only files with this purpose.", "schema": {"type": "string"}},
            "limit": _number("Files of a page.", files.MOST_LISTED, files.MOST_LISTED),
            "order": {
                "description": "By the time they were made; `desc` without it.",
                "schema": {"type": "string", "enum": ["asc", "desc"]},
            },
            "after": _after("^file-.{0,59}$"),
        },
        answer=FileList,
        errors=(BadRequest, ServiceUnavailable),
    ),
    ("/v1/files/{file_id}", "get"): Operation(
        id="file",
        tag=TAG,
        summary="One file, but not what is in it",
        answer=FileObject,
        errors=(UnknownFile, ServiceUnavailable),
    ),
    ("/v1/files/{file_id}", "delete"): Operation(
        id="delete_file",
        tag=TAG,
        summary="Delete a file",
        description="Not while a batch that has not ended reads it.",
        answer=FileDeleted,
        errors=(BadRequest, UnknownFile, StorageUnavailable, ServiceUnavailable),
    ),
    ("/v1/files/{file_id}/content", "get"): Operation(
        id="file_content",
        tag=TAG,
        summary="What is in a file",
        answer=str,
        media_type=files.BYTES,
        errors=(UnknownFile, StorageUnavailable, ServiceUnavailable),
    ),
    ("/v1/batches", "post"): Operation(
        id="create_batch",
        tag=TAG,
        summary="Work on a file of requests in the background",
        description=(
            "Each line of the file is an object with `custom_id`, `method` (`POST`), `url` (the endpoint) and `body`. The "
            "results are files as well, in any order: match them by `custom_id`."
        ),
        body=BatchCreate,
        answer=BatchObject,
        headers=("x-ignored-parameters",),
        whole_headers=("idempotent-replayed",),
        idempotent=True,
        errors=(*_BODY_ERRORS, UnknownFile, IdempotencyConflict, ServiceUnavailable),
        example={"input_file_id": "file-abc123", "endpoint": ENDPOINTS[0], "completion_window": "24h"},
    ),
    ("/v1/batches", "get"): Operation(
        id="batches",
        tag=TAG,
        summary="The caller's batches, the newest first",
        query={
            "limit": _number("Batches of a page.", batches.LISTED, batches.MOST_LISTED),
            "after": _after("^batch_.{0,58}$"),
        },
        answer=BatchList,
        errors=(BadRequest, ServiceUnavailable),
    ),
    ("/v1/batches/{batch_id}", "get"): Operation(
        id="batch",
        tag=TAG,
        summary="One batch: how far it is, and which files its results are in",
        answer=BatchObject,
        errors=(UnknownBatch, ServiceUnavailable),
    ),
    ("/v1/batches/{batch_id}/cancel", "post"): Operation(
        id="cancel_batch",
        tag=TAG,
        summary="Stop a batch",
        description="It is `cancelling` for a moment and then `cancelled`, with the results there are. Takes no body.",
        answer=BatchObject,
        errors=(BadRequest, UnknownBatch, ServiceUnavailable),
    ),
    ("/v1/batches/{batch_id}/events", "get"): Operation(
        id="batch_events",
        tag=TAG,
        summary="A batch's progress, as it happens",
        description="The batch as it is, and again whenever it has changed; the stream ends when the batch does.",
        events=BatchObject,
        resumable=False,
        errors=(UnknownBatch, ServiceUnavailable),
    ),
}
