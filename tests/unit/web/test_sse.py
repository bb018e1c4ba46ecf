from __future__ import annotations

import json

from web.sse import frame, frames


def test_a_frame_is_its_id_and_one_data_line_with_one_space() -> None:
    assert frame(b'{"a":1}', 7) == b'id: 7\ndata: {"a":1}\n\n'


def test_several_events_make_one_chunk_of_whole_frames() -> None:
    assert frames([b"1", b"2"], 9) == frame(b"1", 9) + frame(b"2", 10)
    assert frames([], 1) == b""


def test_line_separators_are_escaped_and_mean_the_same() -> None:
    text = "a\u0085b\u2028c\u2029d\u00c2\u0080é"
    payload = json.dumps(text, ensure_ascii=False).encode()
    sent = frame(payload, 1).decode()
    assert len(sent.splitlines()) == 3  # the id, the data and an empty line
    assert json.loads(sent.removeprefix("id: 1\ndata: ")) == text
