"""A conversation: what was said so far, as the API takes it."""

from __future__ import annotations

import json
from pathlib import Path

Turn = dict[str, str]
"""`role` and `content`."""


class Conversation:
    """Turns after an optional system prompt."""

    def __init__(self, system: str = "") -> None:
        self.system = system
        self._turns: list[Turn] = []

    def __len__(self) -> int:
        return len(self._turns)

    def asked(self, question: str) -> list[Turn]:
        """The messages to send for a next question, which is not part of the conversation before it has an answer."""
        return [*self.messages, {"role": "user", "content": question}]

    def answered(self, question: str, answer: str) -> None:
        """Keep a turn; one without any answer is not kept, as models want the two to alternate."""
        if answer:
            self._turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def clear(self) -> None:
        """Forget all but the system prompt."""
        self._turns.clear()

    @property
    def messages(self) -> list[Turn]:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self._turns]

    def save(self, path: Path) -> None:
        """Write it down: the API's messages where the name ends in `.json`, else as Markdown.

        Raises:
            OSError: there is such a file already, or it cannot be written.
        """
        if path.suffix == ".json":
            text = json.dumps(self.messages, indent=2, ensure_ascii=False) + "\n"
        else:
            text = "\n".join(f"## {turn['role']}\n\n{turn['content']}\n" for turn in self.messages)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
