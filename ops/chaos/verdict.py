"""Whether an answer is right: pure functions over what a client heard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

Verdict = Literal["right", "error", "cut", "left", "lost", "wrong", "duplicated"]
"""right: every byte as in the undisturbed run; error: as far as it went, then a typed error; cut: the connection was lost;
left: the client went away on purpose; lost: no end within the limit; wrong: other bytes, or an end too early; duplicated:
a token came twice."""


def judge(expected: Sequence[bytes], heard: Sequence[bytes], ending: Verdict) -> tuple[Verdict, str]:
    """The verdict, and what is the matter.

    Args:
        expected: the events (or the one body) of the undisturbed run.
        heard: those of this run.
        ending: how it ended, as its client saw it; holds when what was heard is right as far as it goes.
    """
    for position, (right, found) in enumerate(zip(expected, heard, strict=False)):
        if right != found:
            if ending == "right" and position == len(heard) - 1 and is_typed_error(found):
                return "error", found.decode()
            return _difference(position, right, found)
    if len(heard) > len(expected):
        return _difference(len(expected), b"", heard[len(expected)])
    if ending == "right" and len(heard) < len(expected):
        return "wrong", f"ended after {len(heard)} of {len(expected)} events without a word"
    return ending, ""


def is_typed_error(payload: bytes) -> bool:
    """Whether these are the bytes of an error as clients know them; one that nobody foresaw (`internal`) is none."""
    found = _decoded(payload)
    kind = found.get("error_type")
    return isinstance(found.get("error"), str) and isinstance(kind, str) and kind != "internal"


def said(expected: Sequence[bytes], *, streams: bool) -> str:
    """The text of an undisturbed answer."""
    last = _decoded(expected[-1]) if expected else {}
    text = str(last.get("generated_text"))
    if streams:
        tokens = [_decoded(payload)["token"] for payload in expected]
        joined = "".join(token["text"] for token in tokens if not token["special"])
        if joined != text:
            return f"{joined!r} in its tokens and {text!r} at its end"
    return text


def _difference(position: int, right: bytes, found: bytes) -> tuple[Verdict, str]:
    index = _decoded(found).get("index")
    what = f"event {position}: {found[:200]!r} instead of {right[:200]!r}"
    return ("duplicated" if isinstance(index, int) and index <= position else "wrong"), what


def _decoded(payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(payload)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
