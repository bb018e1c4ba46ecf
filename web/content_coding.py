"""Unpacks what clients have compressed, a piece at a time and never beyond a limit."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from common.errors import MalformedBody, UnsupportedMediaType

ACCEPTED = "gzip, deflate"
_GZIP = 16 + zlib.MAX_WBITS
_PIECE = 65_536


class Inflater:
    """One body in `gzip` or `deflate` (with zlib's header, or raw as some clients send it)."""

    def __init__(self, coding: str) -> None:
        """
        Raises:
            UnsupportedMediaType: another coding, or several.
        """
        if coding not in ("gzip", "x-gzip", "deflate"):
            raise UnsupportedMediaType("Expected request with `Content-Encoding` gzip or deflate, or none")
        self._head = b""
        """What came before it was known how to unpack it."""
        self._zlib = zlib.decompressobj(_GZIP) if coding != "deflate" else None

    def pieces(self, packed: bytes) -> Iterator[bytes]:
        """What the next part of the body becomes, in pieces of 64 KiB at most; stop asking to stop unpacking.

        Raises:
            MalformedBody: it cannot be unpacked, or goes on after its end.
        """
        if self._zlib is None:
            self._head = packed = self._head + packed
            if len(packed) < 2:
                return
            self._zlib = zlib.decompressobj(zlib.MAX_WBITS if _has_zlib_header(packed) else -zlib.MAX_WBITS)
        while packed:
            try:
                piece = self._zlib.decompress(packed, _PIECE)
            except zlib.error:
                raise MalformedBody("The compressed body is damaged") from None
            packed = self._zlib.unconsumed_tail
            if piece:
                yield piece
            if self._zlib.unused_data:
                raise MalformedBody("The compressed body goes on after its end")

    def finish(self) -> bytes:
        """The little that was still to come out.

        Raises:
            MalformedBody: the body ended too early.
        """
        try:
            rest = self._zlib.flush() if self._zlib is not None else b""
        except zlib.error:
            raise MalformedBody("The compressed body is damaged") from None
        if self._zlib is None or not self._zlib.eof:
            raise MalformedBody("The compressed body is cut off")
        return rest


def _has_zlib_header(packed: bytes) -> bool:
    """RFC 1950, section 2.2."""
    return packed[0] & 0x0F == 8 and (packed[0] << 8 | packed[1]) % 31 == 0
