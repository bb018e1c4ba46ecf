"""The interactive chat: asks for entries, shows answers as they come."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from ops.chat.client import ChatClient
from ops.chat.conversation import Conversation
from ops.chat.entry import Command, Message, read_entry
from ops.chat.safe_text import harmless
from ops.service_client import ServiceError

HELP = '''/clear          forget the conversation
/system TEXT    set the system prompt; without TEXT show it; - takes it away
/save FILE      write it all to a new file: JSON for .json, else Markdown
/quit           leave, as Ctrl-D does
A line that ends in \\ goes on in the next one; """ begins and ends several;
// begins a message with a slash.
Ctrl-C stops an answer.'''


class Leave(Exception):
    """The person wants to go."""


class Session:
    """
    Args:
        read: asks for a line with a prompt, as `input` does.
        write: shows text at once, as it is.
    """

    def __init__(
        self,
        client: ChatClient,
        conversation: Conversation,
        model: str | None,
        *,
        read: Callable[[str], str],
        write: Callable[[str], None],
    ) -> None:
        self._client = client
        self._conversation = conversation
        self._model = model
        self._read = read
        self._write = write

    def run(self) -> None:
        """Until the person leaves."""
        self._line(f"{self._model or 'the model'} on {self._client.url}; /help lists commands, Ctrl-D leaves")
        with contextlib.suppress(Leave):
            while True:
                self._step()

    def _step(self) -> None:
        try:
            match read_entry(self._read):
                case Command(name, rest):
                    self._obey(name, rest)
                case Message(text) if text.strip():
                    self._ask(text)
        except KeyboardInterrupt:
            self._write("\n")  # What was typed is forgotten.
        except EOFError:
            self._write("\n")
            raise Leave from None

    def _ask(self, question: str) -> None:
        """Show the answer. What has come of it is kept whatever ends it."""
        pieces: list[str] = []
        note = ""
        try:
            with contextlib.closing(self._client.answer(self._conversation.asked(question), self._model)) as answer:
                for piece in answer:
                    pieces.append(piece)
                    self._write(harmless(piece))
            note = f"({self._client.cut_off})" if self._client.cut_off else ""
        except KeyboardInterrupt:
            note = "(stopped)"
        except ServiceError as error:
            note = f"tgq: {error}"
        finally:
            self._conversation.answered(question, "".join(pieces))
        self._write("\n")
        if note:
            self._line(note)

    def _obey(self, name: str, rest: str) -> None:
        match name:
            case "help" | "?":
                self._line(HELP)
            case "clear":
                self._conversation.clear()
                self._line("(forgotten)")
            case "system":
                if rest:
                    self._conversation.system = "" if rest == "-" else rest
                self._line(f"system: {self._conversation.system or '(none)'}")
            case "save":
                self._save(rest)
            case "quit" | "exit" | "bye":
                raise Leave
            case _:
                self._line(f"there is no /{name}; /help lists commands, // begins a message with a slash")

    def _save(self, name: str) -> None:
        if not name:
            self._line("/save wants the name of a file")
            return
        try:
            self._conversation.save(Path(name).expanduser())
        except FileExistsError:
            self._line(f"not saved: there is a file {name} already; name a new one")
        except (OSError, RuntimeError) as error:  # RuntimeError: nobody's home.
            self._line(f"not saved: {error}")
        else:
            self._line(f"saved to {name}")

    def _line(self, text: str) -> None:
        self._write(harmless(text) + "\n")
