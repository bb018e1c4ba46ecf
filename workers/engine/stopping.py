"""Stop strings: found anywhere in the generated text, however tokens split it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    stop: str
    end: int
    """Characters of the text just fed up to the end of the match."""


class StopStrings:
    """Watches a text that arrives in pieces for the first of several strings.

    Each string is searched with its failure function (Knuth, Morris, Pratt), so the cost is linear in the text and
    what is remembered between pieces is one number per string: how much of it the text so far ends with.
    """

    def __init__(self, stops: list[str]) -> None:
        """
        Args:
            stops: non-empty strings.
        """
        self._searches = [_Search(stop) for stop in dict.fromkeys(stops)]

    @property
    def held(self) -> int:
        """Characters at the end of the text that may be the beginning of a stop string."""
        return max((search.matched for search in self._searches), default=0)

    def feed(self, text: str) -> StopMatch | None:
        """Go on with the next piece of the text.

        Returns:
            The match, once there is one: among the strings completed in this piece the one that begins leftmost, of
            several that begin there the longest. Nothing may be fed after it.
        """
        found: tuple[int, int, _Search] | None = None
        for search in self._searches:
            end = search.feed(text)
            if end is not None:
                length = len(search.string)
                if found is None or (end - length, -length) < found[:2]:
                    found = (end - length, -length, search)
        return None if found is None else StopMatch(found[2].string, found[0] - found[1])


class _Search:
    __slots__ = ("_failure", "matched", "string")

    def __init__(self, string: str) -> None:
        self.string = string
        self.matched = 0
        """Length of the longest beginning of `string` that the text so far ends with."""
        self._failure = _failure_function(string)

    def feed(self, text: str) -> int | None:
        """Position in `text` behind the first match, or None."""
        string, failure, matched = self.string, self._failure, self.matched
        if matched == 0 and string[0] not in text:
            return None
        for position, character in enumerate(text, start=1):
            while matched and string[matched] != character:
                matched = failure[matched - 1]
            if string[matched] == character:
                matched += 1
            if matched == len(string):
                return position
        self.matched = matched
        return None


def _failure_function(string: str) -> list[int]:
    """For each beginning of `string`: length of its longest proper suffix that is also a beginning."""
    failure = [0] * len(string)
    length = 0
    for index in range(1, len(string)):
        while length and string[index] != string[length]:
            length = failure[length - 1]
        if string[index] == string[length]:
            length += 1
        failure[index] = length
    return failure
