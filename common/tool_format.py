"""How models write function calls into their text: data for the prompt, the grammar and the parser alike."""

from __future__ import annotations

from msgspec import Struct

SPACE = " "
"""A piece of a format: white space, or nothing. Models write one space there, or none."""
NEWLINE = "\n"
"""The same, where models write a line's end."""


class ToolFormat(Struct, frozen=True, kw_only=True):
    """One way to write calls, as sequences of pieces.

    An answer with calls is: opening, call, (next, call)*, closing; and a call is: head, name, middle, arguments, tail. The
    arguments are a JSON object.
    """

    name: str
    marker: str
    """The first piece of `opening`. Text that has it begins a call wherever it is. Empty: a call is the whole answer."""
    opening: tuple[str, ...]
    head: tuple[str, ...] = ("{", SPACE, '"name"', SPACE, ":", SPACE, '"')
    middle: tuple[str, ...]
    tail: tuple[str, ...] = (SPACE, "}")
    next: tuple[str, ...]
    closing: tuple[str, ...]
    prelude: str = ""
    """A special token that may come before the opening, where the model has it."""
    note: str = ""
    """How to call, in words, for models whose chat template does not say it."""

    @property
    def markers(self) -> frozenset[str]:
        """Pieces that are special tokens in some models' vocabularies."""
        pieces = (*self.opening, *self.middle, *self.next, *self.closing)
        return frozenset(piece for piece in pieces if piece[0] in "<[" and piece[-1] in ">]" and len(piece) > 2)


def _json_middle(arguments: str) -> tuple[str, ...]:
    return ('"', SPACE, ",", SPACE, f'"{arguments}"', SPACE, ":", SPACE)


HERMES = ToolFormat(
    name="hermes",
    marker="<tool_call>",
    opening=("<tool_call>", NEWLINE),
    middle=_json_middle("arguments"),
    next=(NEWLINE, "</tool_call>", NEWLINE, "<tool_call>", NEWLINE),
    closing=(NEWLINE, "</tool_call>"),
    note=(
        "To call a function, answer with a JSON object with its name and its arguments, between <tool_call> and "
        "</tool_call>; call several functions one after the other:\n"
        '<tool_call>\n{"name": "the_name", "arguments": {"an_argument": "its value"}}\n</tool_call>'
    ),
)
"""Nous Hermes, Qwen, SmolLM."""
LLAMA = ToolFormat(
    name="llama",
    marker="",
    opening=(),
    middle=_json_middle("parameters"),
    next=(SPACE, ";", SPACE),
    closing=(),
    prelude="<|python_tag|>",
)
"""Llama from 3.1 on."""
MISTRAL = ToolFormat(
    name="mistral",
    marker="[TOOL_CALLS]",
    opening=("[TOOL_CALLS]", SPACE, "[", SPACE),
    middle=_json_middle("arguments"),
    next=(SPACE, ",", SPACE),
    closing=(SPACE, "]"),
)
"""Mistral's models up to the tokenizers of version 7."""
MISTRAL_ARGS = ToolFormat(
    name="mistral_args",
    marker="[TOOL_CALLS]",
    opening=("[TOOL_CALLS]",),
    head=(),
    middle=("[ARGS]",),
    tail=(),
    next=("[TOOL_CALLS]",),
    closing=(),
)
"""Mistral's models with tokenizers from version 11 on."""

FORMATS = {each.name: each for each in (HERMES, LLAMA, MISTRAL, MISTRAL_ARGS)}


def find_format(template: str) -> ToolFormat | None:
    """The format that a chat template writes calls in; None: it knows none of these."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    if "<tool_call>" in template and "<function=" not in template:
        return HERMES
    if '"parameters": ' in template and "tool_calls" in template:
        return LLAMA
    return None
