"""The page about the command line knows every command, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from typer.main import get_command

from ops.cli import app

PAGE = Path(__file__).parents[2] / "docs/command-line.md"


def test_every_command_is_described() -> None:
    described = re.findall(r"^\| `tgq ([a-z-]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(described) == len(set(described))
    assert set(described) == set(getattr(get_command(app), "commands", {}))
