"""What a chat shows, reads and remembers; no service."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ops.chat.client import USUAL_LIMIT, ChatClient
from ops.chat.conversation import Conversation, Turn
from ops.chat.entry import Command, Entry, Message, read_entry
from ops.chat.safe_text import harmless
from ops.chat.session import HELP, Session
from ops.service_client import ServiceError


def lines(*typed: str) -> Callable[[str], str]:
    left = iter(typed)

    def read(_prompt: str) -> str:
        line = next(left, None)
        if line is None:
            raise EOFError
        if line == "^C":
            raise KeyboardInterrupt
        return line

    return read


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext, zwölf \U0001f600", "plain\n\ttext, zwölf \U0001f600"),
        ("\x1b]0;title\x07", "\u241b]0;title\u2407"),
        ("a\rb\r\n", "ab\n"),
        ("\x00\x08\x7f", "\u2400\u2408\u2421"),
        ("\x9b31m\x85\x90", "\ufffd31m\ufffd\ufffd"),
        ("half \ud83d", "half \ufffd"),
    ],
)
def test_no_text_commands_the_terminal(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_every_control_character_is_made_harmless() -> None:
    controls = [chr(code) for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"]
    assert not set(harmless("".join(controls))) & set(controls)


@pytest.mark.parametrize(
    ("typed", "entry"),
    [
        (["hello"], Message("hello")),
        (["one \\", "two\\", "three"], Message("one \ntwo\nthree")),
        (['"""first', "", "  last", '"""'], Message("first\n\n  last")),
        (['"""at once"""'], Message("at once")),
        (['"""', "/clear is no command here", 'end"""'], Message("/clear is no command here\nend")),
        (["/clear"], Command("clear", "")),
        (["/system  Be brief. "], Command("system", "Be brief.")),
        (["//etc/hosts?"], Message("/etc/hosts?")),
        (["   "], Message("")),
    ],
)
def test_what_is_typed(typed: list[str], entry: Entry) -> None:
    assert read_entry(lines(*typed)) == entry


def test_a_conversation_is_saved_once(tmp_path: Path) -> None:
    talk = Conversation("Be brief.")
    talk.answered("Hi", "Hello")
    talk.answered("Unanswered", "")
    talk.save(tmp_path / "talk.json")
    assert [turn["content"] for turn in json.loads((tmp_path / "talk.json").read_text())] == [
        "Be brief.",
        "Hi",
        "Hello",
    ]
    talk.save(tmp_path / "talk.md")
    assert (tmp_path / "talk.md").read_text() == "## system\n\nBe brief.\n\n## user\n\nHi\n\n## assistant\n\nHello\n"
    with pytest.raises(FileExistsError):
        talk.save(tmp_path / "talk.md")


class Answers(ChatClient):
    """Answers as they are given: pieces of text, or an exception in their midst."""

    def __init__(self, *answers: list[str | BaseException]) -> None:
        super().__init__("127.0.0.1:1", None, {})
        self.asked: list[list[Turn]] = []
        self.closed = 0
        self._answers = list(answers)

    def answer(self, messages: Sequence[Turn], model: str | None) -> Generator[str]:
        self.asked.append([*messages])
        try:
            for piece in self._answers.pop(0):
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self.closed += 1


def session(client: ChatClient, *typed: str, talk: Conversation | None = None) -> str:
    shown: list[str] = []
    Session(client, talk or Conversation(), "some-model", read=lines(*typed), write=shown.append).run()
    return "".join(shown)


def test_turns_go_along_until_they_are_cleared() -> None:
    client = Answers(["Hel", "lo"], ["Again"], ["Fresh"])
    shown = session(client, "Hi", "And?", "/clear", "/system Be brief.", "New", "/quit", "never")
    assert "Hello\n" in shown
    contents = [[turn["content"] for turn in asked] for asked in client.asked]
    assert contents == [["Hi"], ["Hi", "Hello", "And?"], ["Be brief.", "New"]]


@pytest.mark.parametrize(
    ("ending", "note"),
    [(KeyboardInterrupt(), "(stopped)"), (ServiceError("it broke\x1b[2J"), "tgq: it broke\u241b[2J")],
)
def test_what_came_of_an_answer_that_ended_early_is_kept(ending: BaseException, note: str) -> None:
    client = Answers(["Half", ending], [ending], ["Whole"])
    shown = session(client, "One", "Two", "Three")
    assert shown.count(f"{note}\n") == 2
    assert [turn["content"] for turn in client.asked[2]] == ["One", "Half", "Three"]
    assert client.closed == 3


def test_ctrl_c_at_the_prompt_forgets_the_line_and_ctrl_d_leaves() -> None:
    client = Answers(["Yes"])
    shown = session(client, "a line \\", "^C", "Here?")
    assert [asked[-1]["content"] for asked in client.asked] == ["Here?"]
    assert shown.endswith("Yes\n\n")


def test_commands_that_are_none_are_named() -> None:
    shown = session(Answers(), "/cleer", "/save", "/help")
    assert "there is no /cleer" in shown
    assert "/save wants" in shown
    assert "/system TEXT" in shown
    assert max(map(len, HELP.splitlines())) < 80


class Choosy(ChatClient):
    """A service with room for fewer tokens than usual."""

    def __init__(self, parameters: dict[str, float], *, status: int = 400) -> None:
        super().__init__("127.0.0.1:1", None, parameters)
        self.limits: list[int | None] = []
        self._status = status

    def _streamed_answer(self, body: Mapping[str, Any]) -> Generator[str]:
        self.limits.append(body.get("max_tokens"))
        if body.get("max_tokens", 0) > 100:
            raise ServiceError("too many", status=self._status)
        yield "Short."


@pytest.mark.parametrize(
    ("parameters", "status", "limits"),
    [
        ({}, 422, [USUAL_LIMIT, None]),
        ({"temperature": 0.5}, 400, [USUAL_LIMIT, None]),
        ({"max_tokens": 7}, 422, [7]),
        ({"max_tokens": 0}, 422, [None]),
    ],
)
def test_an_answer_has_a_limit_where_there_is_room(
    parameters: dict[str, float], status: int, limits: list[int | None]
) -> None:
    client = Choosy(parameters, status=status)
    assert [*client.answer([], None)] == ["Short."]
    assert client.limits == limits


@pytest.mark.parametrize(("parameters", "status"), [({"max_tokens": 101}, 422), ({}, 429)])
def test_other_refusals_stand(parameters: dict[str, float], status: int) -> None:
    client = Choosy(parameters, status=status)
    with pytest.raises(ServiceError, match="too many"):
        [*client.answer([], None)]
    assert len(client.limits) == 1


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    there = tmp_path / "talk.md"
    there.write_text("mine")
    assert f"not saved: there is a file {there} already" in session(Answers(), f"/save {there}")
    assert there.read_text() == "mine"
