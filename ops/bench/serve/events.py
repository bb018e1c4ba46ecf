"""Server-sent events out of bytes as they come."""

from __future__ import annotations


class EventSplitter:
    """Feed it a stream's bytes; it gives the data of each event that is whole."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        text = self._rest + data
        if b"\r" in text:
            # A carriage return at the very end waits for the line feed that may follow.
            text = text.replace(b"\r\n", b"\n")
        *whole, self._rest = text.split(b"\n\n")
        found = []
        for event in whole:
            if event.startswith(b"data: ") and b"\n" not in event:
                found.append(event[6:])
            elif lines := [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]:
                found.append(b"\n".join(lines))
        return found
