"""The input file of a batch on this machine. Blocks: for threads, several at a time."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO, NamedTuple

from common.batches.storage import Storage

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class RawLine(NamedTuple):
    number: int
    """From 1."""
    start: int
    """Where its bytes begin."""
    text: bytes
    """Without its newline; of a line that is too long, as much as is allowed and a byte."""


class InputFile:
    """Lines in order, and bytes from anywhere. What is not on this machine is fetched once: lines are not read in order."""

    def __init__(self, storage: Storage, name: str) -> None:
        """
        Raises:
            ObjectMissing: it is gone.
            StorageUnavailable: the storage is out of reach.
        """
        with ExitStack() as stack:
            file: BinaryIO = stack.enter_context(storage.reader(name))
            if not isinstance(file, io.BufferedReader):
                copy = stack.enter_context(tempfile.TemporaryFile(prefix="tgq-batch-"))
                shutil.copyfileobj(file, copy, 1 << 20)
                copy.seek(0)
                file = copy
            self._file = file
            self._open = stack.pop_all()

    def close(self) -> None:
        self._open.close()

    def lines(self, longest: int) -> Iterator[RawLine]:
        """Every line that is not blank.

        Args:
            longest: bytes of a line at most.
        """
        start = number = 0
        while text := self._file.readline(longest + 2):
            number += 1
            begin, start = start, start + len(text)
            if not text.endswith(b"\n"):
                while rest := self._file.readline(1 << 20):
                    start += len(rest)
                    if rest.endswith(b"\n"):
                        break
            if number == 1 and text.startswith(_BYTE_ORDER_MARK):
                text, begin = text[len(_BYTE_ORDER_MARK) :], begin + len(_BYTE_ORDER_MARK)
            text = text.rstrip(b"\r\n")
            if text and not text.isspace():
                yield RawLine(number, begin, text)

    def read(self, start: int, length: int) -> bytes:
        return os.pread(self._file.fileno(), length, start)
