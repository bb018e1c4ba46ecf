"""Event streams, taken apart strictly."""

from __future__ import annotations

import re

_COMMENTS = re.compile(r"^:\n", re.MULTILINE)
"""Lines of their own: an empty line behind one would be an event to some clients."""
_FRAME = re.compile(r"id: ([0-9]+)\ndata: (.+)")


def data_of(text: str, *, first: int = 1) -> list[str]:
    """The data of a stream's events.

    It must be made of nothing but comments and frames with one `id` line and one `data` line, in this order. Ids count up
    from `first`; only an error at the end has that of the event before it.
    """
    text = _COMMENTS.sub("", text)
    assert text.endswith("\n\n"), text[-200:]
    frames = text.removesuffix("\n\n").split("\n\n")
    found = [_FRAME.fullmatch(frame) for frame in frames]
    assert all(found), frames
    ids = [int(match[1]) for match in found if match]
    wanted = list(range(first, first + len(ids)))
    assert ids in (wanted, [*wanted[:-1], first + len(ids) - 2]), ids
    return [match[2] for match in found if match]


def openai_data(text: str) -> list[str]:
    """The same of a stream that ends as OpenAI's do."""
    *data, done = data_of(text)
    assert done == "[DONE]"
    return data
