"""Finds function calls in generated text while it arrives."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from common.tool_format import NEWLINE, SPACE, ToolFormat

_SPACES = (" ", "\t", "\r", "\n")
_SPACE = r"[ \t\r\n]{0,8}+"
_NAME = r"(?P<name>[a-zA-Z0-9_.-]{1,64}+)"
_LONGEST_SPACE = 8
_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)


class Content(Struct, frozen=True, gc=False):
    """Text that is no call."""

    text: str


class CallStarted(Struct, frozen=True, gc=False):
    """Its arguments follow."""

    index: int
    id: str
    name: str


class ArgumentsPiece(Struct, frozen=True, gc=False):
    """More of the arguments' JSON text; the pieces of a call make up its arguments."""

    index: int
    text: str


class CallEnded(Struct, frozen=True, gc=False):
    """Its arguments are complete."""

    index: int


ToolEvent = Content | CallStarted | ArgumentsPiece | CallEnded


class ToolCallParser:
    """Of one answer. Linear; no text is lost that turns out to be no call.

    However the text is cut, the events are the same but for where contents and arguments are cut. Text is held back while it
    may be the beginning of a call: some hundred characters at most. White space next to calls is not content.
    """

    def __init__(self, form: ToolFormat, call_id: Callable[[int], str]) -> None:
        """
        Args:
            call_id: makes the id of the call with this index.
        """
        self._form = form
        self._patterns = _patterns(form)
        self._call_id = call_id
        self._calls = 0
        self._text = ""
        """Ends with what was fed last."""
        self._at = 0
        """Where what is not settled begins."""
        self._state = self._outside if form.marker else self._at_begin
        self._arguments = _Arguments()
        self._content: list[str] = []
        self._events: list[ToolEvent] = []

    @property
    def called(self) -> bool:
        """Whether there was a call: the finish reason `tool_calls`, unless the answer was cut (`length`)."""
        return self._calls > 0

    def feed(self, text: str, *, special: bool = False) -> list[ToolEvent]:
        """The next token's text.

        Args:
            special: it is a special token's, which says nothing but where it is one of the format's markers. Feed them all:
                no marker goes on behind one.
        """
        if special:
            text = text.strip()
            if text not in self._form.markers:
                if self._state == self._outside:
                    self._say(len(self._text))
                return self._take()
        if self._state == self._outside and self._at == len(self._text) and self._is_plain(text):
            return [Content(text)] if text else []
        self._text = self._text[self._at :] + text
        self._at = 0
        while self._state():
            pass
        return self._take()

    def end(self) -> list[ToolEvent]:
        """The answer is over: what was held back, unless it belongs to a call."""
        if self._state == self._behind_arguments:
            closing = self._patterns.closing.match(self._text, self._at)
            self._at = closing.end() if closing else len(self._text)
            self._skip_space()
        self._say(len(self._text))
        return self._take()

    # -- states: each settles what it can and tells whether another one is to go on ---------------------------------------

    def _outside(self) -> bool:
        """In free text."""
        text, marker = self._text, self._form.marker
        begin = text.find(marker, self._at)
        if begin < 0:
            # Only the beginning of a marker can be there, at the very end.
            begin = len(text) - len(marker)
        return self._begin(self._patterns.call.search(text, max(self._at, begin - _LONGEST_SPACE)))

    def _at_begin(self) -> bool:
        """Where the only place for calls is the beginning of the answer."""
        return self._begin(self._patterns.call.match(self._text))

    def _begin(self, found: re.Match[str] | None) -> bool:
        """Take what was found of a call: all up to its arguments, a beginning that may become that, or nothing."""
        if found is None:
            self._state = self._plain
            return True
        self._say(found.start())
        return self._started(found)

    def _plain(self) -> bool:
        """No call will follow."""
        self._say(len(self._text))
        return False

    def _inside_arguments(self) -> bool:
        end, complete = self._arguments.scan(self._text, self._at)
        if end > self._at:
            self._events.append(ArgumentsPiece(self._calls - 1, self._text[self._at : end]))
        self._at = end
        if complete:
            self._events.append(CallEnded(self._calls - 1))
            self._state = self._behind_arguments
        return complete

    def _behind_arguments(self) -> bool:
        """Where another call may follow."""
        if found := self._patterns.next.match(self._text, self._at):
            return self._started(found)
        closing = self._patterns.closing.match(self._text, self._at)
        self._at = closing.end() if closing else self._at
        self._state = self._behind_calls
        return True

    def _behind_calls(self) -> bool:
        self._skip_space()
        if self._at == len(self._text):
            return False
        self._state = self._outside if self._form.marker else self._plain
        return True

    def _started(self, found: re.Match[str]) -> bool:
        if found["object"] is None:
            return False
        self._flush()
        self._events.append(CallStarted(self._calls, self._call_id(self._calls), found["name"]))
        self._calls += 1
        self._at = found.end()
        self._arguments = _Arguments()
        self._state = self._inside_arguments
        return True

    def _is_plain(self, text: str) -> bool:
        """Whether no call can begin in this text: the fast way for most tokens."""
        return not text.endswith(_SPACES) and self._form.marker[0] not in text

    def _skip_space(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _say(self, end: int) -> None:
        """Text up to there is content."""
        if end > self._at:
            self._content.append(self._text[self._at : end])
            self._at = end

    def _flush(self) -> None:
        if self._content:
            self._events.append(Content("".join(self._content)))
            self._content.clear()

    def _take(self) -> list[ToolEvent]:
        self._flush()
        events, self._events = self._events, []
        return events


class _Arguments:
    """Finds the end of a JSON object, piece by piece."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def scan(self, text: str, at: int) -> tuple[int, bool]:
        """How far the object goes in this text, and whether it ends there."""
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
            elif self._in_string:
                string = _STRING.match(text, at)
                assert string is not None
                at = string.end() + 1
                if at > len(text):
                    break
                self._escaped = text[at - 1] == "\\"
                self._in_string = self._escaped
            else:
                mark = _STRUCTURE.search(text, at)
                if mark is None:
                    break
                at = mark.end()
                if mark[0] == '"':
                    self._in_string = True
                    continue
                self._depth += 1 if mark[0] in "{[" else -1
                if self._depth == 0:
                    return at, True
        return len(text), False


class _Patterns(NamedTuple):
    """Those of calls match all up to the arguments, with the groups `name` and `object`; or, without the latter, what may
    still become that, at the end of the text.
    """

    call: re.Pattern[str]
    """From the opening to the first call's arguments."""
    next: re.Pattern[str]
    """From behind a call's arguments to the next one's."""
    closing: re.Pattern[str]
    """From behind the last call's arguments to the end of all calls."""


@functools.cache
def _patterns(form: ToolFormat) -> _Patterns:
    call = [*_atoms(form.head), _NAME, *_atoms(form.middle)]
    return _Patterns(
        call=_whole_or_begun([_SPACE, *_atoms(form.opening), *call]),
        next=_whole_or_begun([*_atoms((*form.tail, *form.next)), *call]),
        closing=re.compile("".join(_atoms((*form.tail, *form.closing)))),
    )


def _whole_or_begun(atoms: Sequence[str]) -> re.Pattern[str]:
    expression = r"(?=(?P<object>{))"
    for atom in reversed(atoms):
        expression = rf"{atom}(?:\Z|{expression})"
    return re.compile(expression)


def _atoms(pieces: Iterable[str]) -> Iterator[str]:
    """Expressions that match one character, or spaces."""
    for piece in pieces:
        if piece in (SPACE, NEWLINE):
            yield _SPACE
        else:
            yield from map(re.escape, piece)
