"""One turn of a conversation, whatever API it came by."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

Role = Literal["system", "user", "assistant", "tool"]


class PastCall(Struct, frozen=True):
    """A function that the assistant called."""

    id: str
    name: str
    arguments: dict[str, Any]


class Message(Struct, frozen=True, kw_only=True):
    role: Role
    texts: list[str] = []
    """The content; more than one where it came in parts."""
    name: str | None = None
    """Of the participant, or of the function whose result this is."""
    reasoning: str | None = None
    """What the assistant thought before it answered."""
    calls: list[PastCall] = []
    """Of an assistant's message."""
    call_id: str | None = None
    """Of a tool's message: the call it answers."""

    @property
    def text(self) -> str:
        """The content as one string. Parts are joined with nothing between them, as TGI does."""
        return "".join(self.texts)
