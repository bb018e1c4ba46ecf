"""The response headers that the document names, and what they mean."""

from __future__ import annotations

from typing import Any

from web.deadline import LONGEST_SECONDS

_INTEGER = {"type": "integer", "minimum": 0}
_MILLISECONDS = {"type": "integer", "minimum": 0, "description": "Milliseconds."}
_TEXT = {"type": "string"}


def header(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "schema": schema}


HEADERS: dict[str, dict[str, Any]] = {
    "x-request-id": header(
        "The request's id in our logs: the caller's own if it sent a plain word, else a new one.", _TEXT
    ),
    "retry-after": header("Whole seconds after which to try again.", {"type": "integer", "minimum": 1}),
    "www-authenticate": header("How to authenticate: always `Bearer`.", _TEXT),
    "x-compute-type": header("What computed the answer: `cpu`, `cuda`, or `unknown`.", _TEXT),
    "x-compute-characters": header("Characters of the prompt as it was sent.", _INTEGER),
    "x-ignored-parameters": header(
        "Keys of the body that had no effect, separated by commas; absent without any.", _TEXT
    ),
    "x-compute-time": header("Seconds from the parsed request to the whole answer.", {"type": "number", "minimum": 0}),
    "x-total-time": header("From the parsed request to the whole answer.", _MILLISECONDS),
    "x-validation-time": header("Spent on checking and tokenizing.", _MILLISECONDS),
    "x-queue-time": header("Spent waiting for a worker.", _MILLISECONDS),
    "x-inference-time": header("Spent generating.", _MILLISECONDS),
    "x-time-per-token": header("Spent generating, for each token.", _MILLISECONDS),
    "x-prompt-tokens": header("Tokens of the prompt.", _INTEGER),
    "x-generated-tokens": header("Tokens of the answer.", _INTEGER),
    "x-ratelimit-limit-requests": header("Requests the key may have in flight.", _INTEGER),
    "x-ratelimit-remaining-requests": header("Requests the key may have in flight beside those it has.", _INTEGER),
    "x-ratelimit-limit-tokens": header("Tokens the key may use in a minute.", _INTEGER),
    "x-ratelimit-remaining-tokens": header("Tokens that are left of those.", _INTEGER),
    "x-ratelimit-reset-tokens": header("When all of them are there again, as in `12.345s`.", _TEXT),
    "idempotent-replayed": header("`true` when the answer is that of an earlier call.", _TEXT),
    "accept-encoding": header("How bodies may be compressed.", _TEXT),
}

REQUEST_HEADERS: dict[str, dict[str, Any]] = {
    "x-request-id": header(
        "The request's id in our logs and in its answer, if it has up to 128 letters, digits and `._-`.", _TEXT
    ),
    "idempotency-key": header(
        "However often a call with the same key is repeated, it runs once. Of no effect on streams.",
        {"type": "string", "pattern": "^[!-~]{1,255}$"},
    ),
    "x-request-timeout": header(
        "Seconds within which the request must be finished; then it ends with 504, or with an error event in a stream.",
        {"type": "number", "exclusiveMinimum": 0, "maximum": LONGEST_SECONDS},
    ),
    "x-tgq-resume": header(
        "`true`: the stream runs on for a while when its connection is lost, and can be gone on with (`last-event-id`). "
        "For streams of one prompt.",
        {"type": "string", "enum": ["true", "false"]},
    ),
    "last-event-id": header(
        "Go on behind this event of a resumable stream; sent with the same key, `x-request-id` and body, to any web node. "
        "0 stands for its begin. The same id may be sent again.",
        {"type": "string", "pattern": "^[0-9]{1,12}$"},
    ),
}
"""What callers may send, beside what HTTP itself has."""


def parameters(*names: str) -> list[dict[str, Any]]:
    return [{"$ref": f"#/components/parameters/{name}"} for name in names]


def references(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
