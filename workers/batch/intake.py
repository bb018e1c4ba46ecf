"""The validation pass over an input file: what is wrong with it as a whole, and where its lines are.

What only one request is wrong about (a parameter's value, a prompt that is too long) is that request's error, and no concern
of the pass.
"""

from __future__ import annotations

import time
from collections import defaultdict
from hashlib import blake2b

import msgspec
from msgspec import Raw

from common.batches.objects import BatchError
from common.protocols.batch_lines import Gist, LineError, read_line
from common.settings import Settings
from workers.batch.input_file import InputFile, RawLine
from workers.batch.line_index import Entry, LineIndex, digest

MOST_ERRORS = 100
"""The pass ends with so many."""
_PORTION_SECONDS = 0.25
_PORTION_LINES = 1000
_OPENING = 256
"""Bytes in which prompts without a system message must be alike to be sent together."""


class Intake:
    """Reads a file a portion at a time; blocks, for threads, one call at a time."""

    def __init__(self, file: InputFile, index: LineIndex, endpoint: str, settings: Settings) -> None:
        self._lines = file.lines(settings.payload_limit)
        self._index = index
        self._endpoint = endpoint
        self._longest = settings.payload_limit
        self._most = settings.batch_max_requests
        self.total = 0
        """Requests so far."""
        self.lanes: dict[str, int] = {}
        """The model names so far, each with the number of its lane; the empty one for requests without."""
        self.errors: list[BatchError] = []
        self.finished = False
        self._unknown: dict[str, str] = {}

    def read_some(self) -> dict[str, list[int]]:
        """Read on for a moment; returns the model names that are new, with the numbers of their first lines."""
        entries: list[Entry] = []
        names: dict[str, list[int]] = defaultdict(list)
        known = frozenset(self.lanes)
        until = time.monotonic() + _PORTION_SECONDS
        while len(entries) < _PORTION_LINES and len(self.errors) < MOST_ERRORS and time.monotonic() < until:
            line = next(self._lines, None)
            if line is None:
                self.finished = True
                break
            self.total += 1
            if self.total > self._most:
                self.refuse("request_limit_exceeded", f"The file has more than {self._most} requests.", None)
                self.finished = True
                break
            try:
                entry, model = self._entry(line)
            except LineError as error:
                self.refuse(error.code, error.message, line.number, error.param)
                continue
            entries.append(entry)
            if model in self._unknown:
                self.refuse("model_not_found", self._unknown[model], line.number, "body.model")
            elif model not in known and len(names[model]) < MOST_ERRORS:
                names[model].append(line.number)
        for number, first in self._index.add(entries):
            message = f"Duplicate 'custom_id': it is that of line {first} too, and must be unique in the file."
            self.refuse("duplicate_custom_id", message, number, "custom_id")
        if self.finished and not self.total:
            self.refuse("empty_file", "The file holds no requests.", None)
        self.finished = self.finished or len(self.errors) >= MOST_ERRORS
        return dict(names)

    def refuse_model(self, name: str, lines: list[int], message: str) -> None:
        """There is no model of this name: these lines are wrong, and all that follow with it."""
        self._unknown[name] = message
        for line in lines:
            self.refuse("model_not_found", message, line, "body.model")

    def refuse(self, code: str, message: str, line: int | None, param: str | None = None) -> None:
        self.errors.append(BatchError(code, message, param, line))

    def told_errors(self) -> list[BatchError]:
        """As many as are told, in the order of their lines."""
        return sorted(self.errors, key=lambda error: error.line or 0)[:MOST_ERRORS]

    def _entry(self, line: RawLine) -> tuple[Entry, str]:
        if len(line.text) > self._longest:
            raise LineError("line_too_long", f"This line has more than {self._longest} bytes.")
        request = read_line(line.text, self._endpoint)
        # Any other value is the request's own error.
        model = request.gist.model if isinstance(request.gist.model, str) else ""
        lane = self.lanes.setdefault(model, len(self.lanes))
        prefix = _prefix(request.gist)
        return Entry(line.number, line.start, len(line.text), lane, prefix, digest(request.custom_id)), model


def _prefix(gist: Gist) -> int:
    """Equal for bodies whose prompts begin alike, by all that can be told without reading them."""
    return int.from_bytes(blake2b(bytes(gist.tools) + _opening(gist), digest_size=8).digest(), "big", signed=True)


class _Message(msgspec.Struct, gc=False):
    role: str = ""
    content: Raw = Raw()


_decode_messages = msgspec.json.Decoder(list[Raw]).decode
_decode_message = msgspec.json.Decoder(_Message).decode


def _opening(gist: Gist) -> bytes:
    if not gist.messages:
        return bytes(gist.prompt)[:_OPENING]
    try:
        first = _decode_message(_decode_messages(gist.messages)[0])
    except (msgspec.DecodeError, IndexError):
        return b""
    content = bytes(first.content)
    return content if first.role in ("system", "developer") else content[:_OPENING]
