"""Prompts from a file of JSON lines. What is wrong with it is told with the line and the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ops.batches.input import BadInput
from ops.bench.serve.prompts import Prompt

LENGTHS = ("max_tokens", "output_len", "output_tokens")
_LONGEST = 1 << 20
"""Tokens an answer may be asked for."""


def read_dataset(path: Path, api: str, api_path: str) -> list[Prompt]:
    """All prompts of a file: `{"prompt": ...}`, `{"messages": [...]}`, or the lines of OpenAI's batches.

    Raises:
        BadInput: the file cannot be read, has no prompts, or one that cannot be sent over this API.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadInput(f"{path} cannot be read: {words}") from None
    reader = _Reader(api, api_path)
    prompts = []
    # Not splitlines(): JSON may hold the other characters that Unicode ends lines with.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                prompts.append(reader.read(line))
            except _Wrong as wrong:
                raise BadInput(f"line {number} of {path}: {wrong}") from None
    if not prompts:
        raise BadInput(f"{path} has no prompts")
    return prompts


class _Wrong(Exception):
    """What is wrong with a line."""


class _Reader:
    def __init__(self, api: str, api_path: str) -> None:
        self._api, self._path = api, api_path

    def read(self, line: str) -> Prompt:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise _Wrong(f"it is not JSON: {error}") from None
        if not isinstance(record, dict):
            raise _Wrong("a JSON object is wanted")
        if "body" in record:
            return self._batch_line(record)
        if ("prompt" in record) == ("messages" in record):
            raise _Wrong("either `prompt` or `messages` is wanted")
        length = _length(record)
        if "messages" in record:
            if self._api != "openai-chat":
                raise _Wrong(f"`messages` need --api openai-chat, not {self._api}")
            return Prompt(messages=_messages(record["messages"]), max_tokens=length)
        if not isinstance(record["prompt"], str) or not record["prompt"]:
            raise _Wrong("`prompt` must be a string that is not empty")
        return Prompt(text=record["prompt"], max_tokens=length)

    def _batch_line(self, record: dict[str, Any]) -> Prompt:
        """A request of a batch goes as it is, only streamed and to the model of this run."""
        body = record["body"]
        if not isinstance(body, dict):
            raise _Wrong("`body` must be an object")
        if record.get("url") != self._path:
            raise _Wrong(f"`url` is {record.get('url')!r}, --api {self._api} asks {self._path}")
        if body.get("n", 1) != 1:
            raise _Wrong("`body.n` must be 1: the times of several choices in one stream mean nothing")
        if self._api == "openai-chat":
            _messages(body.get("messages"))
        elif not isinstance(body.get("prompt"), str) or not body["prompt"]:
            raise _Wrong("`body.prompt` must be a string that is not empty")
        length = None
        for name in ("max_tokens", "max_completion_tokens"):
            if body.get(name) is not None:
                length = _checked(f"body.{name}", body[name])
        ours = ("model", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens")
        return Prompt(fields={name: value for name, value in body.items() if name not in ours}, max_tokens=length)


def _messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise _Wrong("`messages` must be a list that is not empty")
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _Wrong(f"`messages[{index}]` must be an object with a `role`")
    return value


def _length(record: dict[str, Any]) -> int | None:
    named = [name for name in LENGTHS if record.get(name) is not None]
    if len(named) > 1:
        raise _Wrong(f"`{named[0]}` and `{named[1]}` say the same thing: give one of them")
    return _checked(named[0], record[named[0]]) if named else None


def _checked(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LONGEST:
        raise _Wrong(f"`{name}` must be a whole number from 1 to {_LONGEST}")
    return value
