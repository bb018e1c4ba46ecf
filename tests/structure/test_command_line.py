"""The page about the command line knows every command and no other; the programs that are installed are there."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

from typer.main import get_command

from ops.cli import app

ROOT = Path(__file__).parents[2]


def test_every_command_is_described() -> None:
    described = re.findall(r"^\| `tgq ([a-z-]+)` \|", (ROOT / "docs/command-line.md").read_text(), re.MULTILINE)
    assert len(described) == len(set(described))
    assert set(described) == set(getattr(get_command(app), "commands", {}))


def test_the_programs_that_are_installed_are_there() -> None:
    programs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(programs) == {"tgq", "text-generation-launcher"}
    for target in programs.values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
