"""What the shell offers at a TAB."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ops.cli import app


def offered(line: str) -> list[str]:
    words = line.split(" ")
    environment = {"_TGQ_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    result = CliRunner().invoke(app, [], prog_name="tgq", env=environment)
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("tgq dr", ["drain"]),
        ("tgq batch f", ["fetch"]),
        ("tgq serve --on-sig", ["--on-sigterm"]),
        ("tgq serve --on-sigterm ", ["auto", "hand_over", "finish"]),
        ("tgq serve --device c", ["cpu", "cuda"]),
    ],
)
def test_commands_flags_and_what_settings_may_be(line: str, names: list[str]) -> None:
    assert offered(line) == names
