from __future__ import annotations

import json

from web.sse import frame, frames


def test_a_frame_is_one_data_line_with_one_space() -> None:
    assert frame(b'{"a":1}') == b'data: {"a":1}\n\n'


def test_several_events_make_one_chunk_of_whole_frames() -> None:
    assert frames([b"1", b"2"]) == frame(b"1") + frame(b"2")
    assert frames([]) == b""


def test_line_separators_are_escaped_and_mean_the_same() -> None:
    text = "a\u0085b\u2028c\u2029d\u00c2\u0080é"
    payload = json.dumps(text, ensure_ascii=False).encode()
    sent = frame(payload).decode()
    assert len(sent.splitlines()) == 2  # the line and the empty line after it
    assert json.loads(sent.removeprefix("data: ")) == text
