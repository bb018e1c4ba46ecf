"""What is looked at of an input before it is sent; its lines are checked by the service."""

from __future__ import annotations

import json
from pathlib import Path


class BadInput(Exception):
    """What was given on the command line, or the file it names, cannot be used; the message is for people."""


def first_url(path: Path) -> str:
    """The `url` of a file's first request: the endpoint of the whole batch."""
    try:
        with path.open("rb") as file:
            line = file.readline(1 << 24)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None
    if not line.strip():
        raise BadInput(f"{path} {'begins with an empty line' if line else 'is empty'}")
    try:
        url = json.loads(line)["url"]
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"line 1 of {path} is no request: a JSON object with custom_id, method, url and body") from None
    if not isinstance(url, str):
        raise BadInput(f"line 1 of {path}: url must be a string such as /v1/chat/completions")
    return url


def pairs(given: list[str]) -> dict[str, str]:
    """`NAME=VALUE` as a dictionary."""
    found = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadInput(f"--metadata {pair}: NAME=VALUE is wanted")
        found[name] = value
    return found
