"""Server-sent events as bytes.

A frame is an `id: ` line, one `data: ` line (one space: some clients compare whole lines) and an empty line. Ids number
the events of a stream from 1; an error, which is no part of the answer, has that of the event before it, so that a client
that resumes behind it misses nothing. Three characters that JSON allows are escaped, because many clients split lines the
Unicode way and would break a frame at them.
"""

from __future__ import annotations

from collections.abc import Sequence

COMMENT = b":\n"
"""A line of its own, and no empty line after it: OpenAI's Python client takes that for an event without data once it has seen
an `id`."""
CONTENT_TYPE = "text/event-stream"
HEADERS = {"x-accel-buffering": "no", "cache-control": "no-cache"}
"""Keep proxies from holding events back."""


def frame(json: bytes, number: int) -> bytes:
    """One event; `json` is UTF-8 without raw newlines, as encoders write it."""
    return b"id: %d\ndata: %b\n\n" % (number, _one_line(json))


def frames(payloads: Sequence[bytes], first: int) -> bytes:
    """Several events as one chunk, numbered from `first` on."""
    if len(payloads) == 1:  # as nearly always
        return frame(payloads[0], first)
    return _one_line(b"".join([b"id: %d\ndata: %b\n\n" % numbered for numbered in enumerate(payloads, first)]))


def _one_line(json: bytes) -> bytes:
    if json.isascii():  # a hundred times as fast as to look for each
        return json
    # U+0085, U+2028, U+2029: their UTF-8 bytes occur nowhere else, and the characters only inside JSON strings.
    return (
        json.replace(b"\xc2\x85", b"\\u0085").replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    )
