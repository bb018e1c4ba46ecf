"""Stop strings against a search in the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.engine.stopping import StopMatch, StopStrings

alphabet = st.text("ab", min_size=1, max_size=4)
stops_and_pieces = st.tuples(
    st.lists(alphabet, min_size=1, max_size=3), st.lists(st.text("abc", max_size=5), max_size=12)
)


def search(stops: list[str], before: str, piece: str) -> StopMatch | None:
    """The rule, spelled out: matches that end within the piece, the leftmost, of these the longest."""
    text = before + piece
    matches = [
        (start, -len(stop), stop)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start) and start + len(stop) > len(before)
    ]
    if not matches:
        return None
    start, _, stop = min(matches)
    return StopMatch(stop, start + len(stop) - len(before))


def possible_beginning(stops: list[str], text: str) -> int:
    return max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)


@given(stops_and_pieces)
def test_like_a_search_in_the_whole_text(drawn: tuple[list[str], list[str]]) -> None:
    stops, pieces = drawn
    watch = StopStrings(stops)
    text = ""
    for piece in pieces:
        match = watch.feed(piece)
        assert match == search(stops, text, piece)
        if match is not None:
            return
        text += piece
        assert watch.held == possible_beginning(stops, text)


def test_match_within_a_piece() -> None:
    assert StopStrings(["Pari"]).feed(" Paris.") == StopMatch("Pari", 5)


def test_match_over_several_pieces() -> None:
    watch = StopStrings(["DEFGH"])
    assert (watch.feed("xDEF"), watch.held) == (None, 3)
    assert (watch.feed("G"), watch.held) == (None, 4)
    assert watch.feed("HI") == StopMatch("DEFGH", 1)


def test_a_failed_beginning_falls_back_on_a_shorter_one() -> None:
    watch = StopStrings(["aab"])
    assert (watch.feed("aa"), watch.held) == (None, 2)
    assert (watch.feed("a"), watch.held) == (None, 2)
    assert watch.feed("b") == StopMatch("aab", 1)


def test_leftmost_then_longest() -> None:
    assert StopStrings(["bc", "abcd"]).feed("xabcd") == StopMatch("abcd", 5)
    assert StopStrings(["ab", "abc"]).feed("abc") == StopMatch("abc", 3)


def test_nothing_to_stop_at() -> None:
    watch = StopStrings([])
    assert (watch.feed("anything"), watch.held) == (None, 0)


def test_a_long_stop_string_costs_linear_time() -> None:
    stop = "a" * 5_000 + "b"
    watch = StopStrings([stop])
    for _ in range(20_000):
        assert watch.feed("a") is None
    assert watch.held == 5_000
    assert watch.feed("b") == StopMatch(stop, 1)
