"""The frames of a job nobody listens to, folded into what its Celery task returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from common.errors import TgqError, error_from_worker
from common.wire import Failed, Finish, FrameBody, Tokens


class JobCancelled(TgqError):
    """The job was cancelled."""

    error_type = "cancelled"


class JobReturned(TgqError):
    """The job's message is back in its queue, or with another worker: it ends there."""

    error_type = "returned"


@dataclass(slots=True)
class _Child:
    text: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    finish: Finish | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "generated_text": "".join(self.text),
            "finish_reason": self.finish.reason if self.finish else None,
            "generated_tokens": self.finish.generated_tokens if self.finish else len(self.ids),
            "tokens": self.ids,
        }


@dataclass(slots=True)
class Answer:
    """What was generated so far."""

    children: dict[int, _Child] = field(default_factory=dict)

    def add(self, tokens: Tokens) -> None:
        child = self.children.setdefault(tokens.child, _Child())
        child.text.extend(token.text for token in tokens.tokens if not token.special)
        child.ids.extend(token.id for token in tokens.tokens)
        child.finish = tokens.finish

    def outcome(self, last: FrameBody) -> Answer | TgqError:
        """How the task ends, given the job's last frame (already added when it held tokens)."""
        match last:
            case Failed():
                return error_from_worker(last.error_type, last.message)
            case Tokens():
                return self
            case _:
                return JobCancelled()

    def as_dict(self) -> dict[str, Any]:
        """Plain data: `generated_text`, `finish_reason`, `generated_tokens` and `tokens` (ids of this attempt).

        Of a job with several children those of the first, and the others' as `siblings`.
        """
        first, *siblings = [child.as_dict() for _, child in sorted(self.children.items())] or [_Child().as_dict()]
        return first | ({"siblings": siblings} if siblings else {})
