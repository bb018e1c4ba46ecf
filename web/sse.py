"""Server-sent events as bytes.

A frame is one `data: ` line (one space: some clients compare whole lines) and an empty line. Three characters that JSON
allows are escaped, because many clients split lines the Unicode way and would break a frame at them.
"""

from __future__ import annotations

COMMENT = b":\n\n"
CONTENT_TYPE = "text/event-stream"
HEADERS = {"x-accel-buffering": "no", "cache-control": "no-cache"}
"""Keep proxies from holding events back."""


def frame(json: bytes) -> bytes:
    """One event; `json` is UTF-8 without raw newlines, as encoders write it."""
    return b"data: " + _one_line(json) + b"\n\n"


def frames(payloads: list[bytes]) -> bytes:
    """Several events as one chunk."""
    return b"data: " + _one_line(b"\n\ndata: ".join(payloads)) + b"\n\n" if payloads else b""


def _one_line(json: bytes) -> bytes:
    # U+0085, U+2028, U+2029: their UTF-8 bytes occur nowhere else, and the characters only inside JSON strings.
    return (
        json.replace(b"\xc2\x85", b"\\u0085").replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    )
