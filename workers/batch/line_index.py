"""Where the lines of an input file are and in which order to send them: an SQLite database on disk, so that a file with a
million lines takes no more memory than one with ten. Blocks: for threads; one call at a time."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA temp_store = FILE;
PRAGMA cache_size = -32768;
CREATE TABLE lines (
  number INTEGER PRIMARY KEY, start INTEGER NOT NULL, length INTEGER NOT NULL, lane INTEGER NOT NULL,
  prefix INTEGER NOT NULL, custom_id BLOB NOT NULL UNIQUE
);
BEGIN;
"""
# Groups in the order of their first lines, and lines in the order of the file.
_BY_PREFIX = """
SELECT number, start, length
FROM lines JOIN (SELECT prefix, MIN(number) AS first FROM lines WHERE lane = ?1 GROUP BY prefix) USING (prefix)
WHERE lane = ?1 ORDER BY first, number
"""
_FETCHED_AT_ONCE = 256


class Place(NamedTuple):
    """Where a line is in its file."""

    number: int
    """From 1."""
    start: int
    length: int
    """In bytes."""


class Entry(NamedTuple):
    """A line as it is put into the index."""

    number: int
    start: int
    length: int
    lane: int
    """Which model it is for."""
    prefix: int
    """Equal for lines whose prompts begin alike; 64 bits, signed."""
    custom_id: bytes
    """See `digest`."""


def digest(custom_id: str) -> bytes:
    return blake2b(custom_id.encode(), digest_size=16).digest()


class LineIndex:
    """Of one file. Close it when it is done with."""

    def __init__(self) -> None:
        # Threads take turns: sqlite3 would let several in, whose cursors share one cache.
        self._lock = threading.Lock()
        # Without a name it is a temporary file of SQLite's, which goes with this process, however that ends.
        self._database = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def add(self, entries: Sequence[Entry]) -> list[tuple[int, int]]:
        """Add lines; returns `(number, number of the first line with this custom_id)` of each that repeats one, which is
        left out."""
        with self._lock:
            before = self._database.total_changes
            self._database.executemany("INSERT OR IGNORE INTO lines VALUES (?, ?, ?, ?, ?, ?)", entries)
            if self._database.total_changes - before == len(entries):
                return []
            return [
                (entry.number, first)
                for entry in entries
                for (first,) in self._database.execute(
                    "SELECT number FROM lines WHERE custom_id = ?", (entry.custom_id,)
                )
                if first != entry.number
            ]

    def places(self, lane: int | None = None) -> Iterator[Place]:
        """The lines of one lane, those with the same prefix together; or all in the file's order.

        The index must not grow meanwhile.
        """
        with self._lock:
            if lane is None:
                cursor = self._database.execute("SELECT number, start, length FROM lines ORDER BY number")
            else:
                cursor = self._database.execute(_BY_PREFIX, (lane,))
        while True:
            with self._lock:
                rows = cursor.fetchmany(_FETCHED_AT_ONCE)
            if not rows:
                return
            yield from (Place(*row) for row in rows)
