"""One request as its client saw it."""

from __future__ import annotations

from dataclasses import dataclass, field

CONNECT = "connect"
TIMEOUT = "timeout"
STREAM_ERROR = "stream error"
BROKEN = "broken stream"
NO_OUTPUT = "no output"
BAD_ANSWER = "bad answer"

_REASON_LENGTH = 200


@dataclass(slots=True)
class Record:
    """One request; moments are seconds of `time.perf_counter`."""

    intended: float
    """When it was to be sent."""
    asked_tokens: int
    woke: float = 0.0
    """When the client came to it; what `intended` was missed by is the client's own lateness."""
    output_at: list[float] = field(default_factory=list)
    """When each event with output came."""
    counts: list[int] = field(default_factory=list)
    """Output tokens so far by each of these events; empty where the server does not tell along the way."""
    finish_at: float = 0.0
    """When the server last told that the answer was at its end; 0: it has not."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    """By the server's count."""
    failure: str = ""
    """Kind of failure, or empty."""
    reason: str = ""
    """More about it, for people."""

    def fail(self, kind: str, reason: str = "") -> None:
        """Note a failure; the first one counts."""
        if not self.failure:
            self.failure = kind
            self.reason = "".join(c if c.isprintable() else " " for c in reason[:_REASON_LENGTH]).strip()

    @property
    def tokens(self) -> int:
        """Output tokens: by usage, else one for each event with output."""
        return len(self.output_at) if self.output_tokens is None else self.output_tokens


def http_failure(status: int) -> str:
    return f"HTTP {status}"
