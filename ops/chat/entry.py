"""What a person types: a message of one or more lines, or a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

PROMPT = ">>> "
CONTINUED = "... "
_QUOTES = '"""'


@dataclass(frozen=True)
class Message:
    text: str


@dataclass(frozen=True)
class Command:
    name: str
    """Without the slash."""
    rest: str


Entry = Message | Command


def read_entry(read: Callable[[str], str]) -> Entry:
    '''Read one entry, which goes on over a backslash at the end of a line, or from """ to """.

    A line that begins with a slash is a command; two slashes begin a message with one.

    Args:
        read: asks for a line with a prompt; raises EOFError at the end and KeyboardInterrupt on Ctrl-C, which pass through.
    '''
    line = read(PROMPT)
    if line.lstrip().startswith(_QUOTES):
        return Message(_quoted(line.lstrip()[len(_QUOTES) :], read))
    if line.startswith("/") and not line.startswith("//"):
        name, _, rest = line[1:].partition(" ")
        return Command(name.strip(), rest.strip())
    lines = [line[1:] if line.startswith("//") else line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(read(CONTINUED))
    return Message("\n".join(lines).strip())


def _quoted(line: str, read: Callable[[str], str]) -> str:
    lines = [line]
    while not lines[-1].rstrip().endswith(_QUOTES):
        lines.append(read(CONTINUED))
    lines[-1] = lines[-1].rstrip()[: -len(_QUOTES)]
    return "\n".join(lines).strip("\n")
