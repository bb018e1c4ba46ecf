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


def test_the_script_is_that_of_the_shell_that_is_named() -> None:
    assert "#compdef tgq" in CliRunner().invoke(app, ["--show-completion", "zsh"], prog_name="tgq").stdout


@pytest.mark.parametrize("option", ["--show-completion", "--install-completion"])
@pytest.mark.parametrize("words", [["tcsh"], ["ps"], ["zsh", "fish"]])
def test_what_is_no_shell_is_refused(option: str, words: list[str]) -> None:
    refused = CliRunner().invoke(app, [option, *words], prog_name="tgq", env={"COLUMNS": "200"})
    assert refused.exit_code == 2
    assert not refused.stdout
    assert "bash, zsh, fish" in refused.stderr
