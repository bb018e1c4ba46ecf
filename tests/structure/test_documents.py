"""What the documents name exists: files, headings, commands, flags, settings, modules, routes."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import common.errors
from common.errors import TgqError
from common.settings import Settings
from ops.cli import app
from ops.configuration import variables
from ops.launcher.flags import FLAGS, VARIABLES, TgiFlag
from web.routes import DOCUMENTATION, PLAYGROUND, ROUTES

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
MIGRATION = ROOT / "docs/migrating-from-tgi.md"
TGQ: Any = get_command(app)
OTHERS = {"TGQ_URL", "TGQ_KEY", "TGQ_SCHEMATHESIS_CASES"} | set(
    re.findall(r"\$\{([A-Z_]+)", (ROOT / "docker-compose.yml").read_text())
)
"""Variables that something else reads than the settings."""
WORDS = {"honoured": "taken", "ignored": "no effect", "refused": "refused"}

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)


def code(text: str) -> str:
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_document
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_document_is_reached_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)", (ROOT / "README.md").read_text()))
    assert {str(file.relative_to(ROOT)) for file in (ROOT / "docs").glob("*.md")} == linked


@every_document
def test_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z][a-z-]*)", code(document.read_text()))) <= targets


@every_document
def test_commands_and_their_flags_exist(document: Path) -> None:
    whole_lines = code(document.read_text()).replace("\\\n", " ")
    for line in re.findall(r"(?:^|`|/bin/)tgq ([^`\n#|;]+)", whole_lines, re.MULTILINE):
        command: Any = TGQ
        for word in line.split():
            if not hasattr(command, "commands"):
                break
            if not word.startswith("-"):
                assert word in command.commands, line
                command = command.commands[word]
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        assert set(re.findall(r"(?<!\S)--[a-z][a-z-]*", line)) <= known | {"--help"}, line


@every_document
def test_modules_and_variables_exist(document: Path) -> None:
    # TGI's variables that have no effect here, or are refused, have rows that say so.
    text = code(re.sub(r"^\| .* \| (?:no effect|refused).*$", "", document.read_text(), flags=re.MULTILINE))
    modules = set(re.findall(r"python -m ([a-z_.]+[a-z_])", text))
    assert not [module for module in modules if importlib.util.find_spec(module) is None]
    known = {variable for name in Settings.model_fields for variable in variables(name)}
    used = set(re.findall(r"\b((?:TGQ|MAX|REDIS|MODEL|WEB)_[A-Z_]+)\b", text))
    assert used - known <= OTHERS


@every_document
def test_paths_exist(document: Path) -> None:
    """Files and folders in backticks, from the root or beside the document."""
    paths = re.findall(r"`((?:common|web|workers|ops|tests|docs)/[\w./-]*\w)`", document.read_text())
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_every_setting_is_in_the_documents() -> None:
    texts = "".join(document.read_text() for document in DOCUMENTS if document.name != "CHANGELOG.md")
    names = {Settings.variable(name).upper() for name in Settings.model_fields}
    assert {name for name in names if f"`{name}" not in texts} == {"TGQ_ENGINE_TARGET"}  # for benches and tests


def test_every_error_is_in_the_table_of_statuses() -> None:
    table = (ROOT / "docs/api-differences.md").read_text()
    rows = re.findall(r"^\| ((?:\d{3}(?:, )?)+) \| .+ \| (.+) \|$", table, re.MULTILINE)
    told = {
        (int(status), word) for statuses, words in rows for status in statuses.split(", ") for word in words.split(", ")
    }
    errors = [kind for kind in vars(common.errors).values() if isinstance(kind, type) and issubclass(kind, TgqError)]
    assert len(errors) > 20
    assert {(error.status, f"`{error.error_type}`") for error in errors} <= told


def test_the_map_is_one() -> None:
    assert len(re.findall(r"^\s*- `([\w./-]+)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)) > 20


def test_routes_that_stay_are_served() -> None:
    """In the table of TGI's routes, whatever is not refused."""
    section = MIGRATION.read_text().partition("## Routes")[2].partition("New beside them")[0]
    served = {re.sub(r":path\}", "}", path) for path in {**ROUTES, **PLAYGROUND, **DOCUMENTATION}}
    for row in re.findall(r"^\| (`.+?) \| (.+) \|$", section, re.MULTILINE):
        paths = {
            re.sub(r"\{(?!model|version)\w+\}", "{name}", path) for path in re.findall(r"`[A-Z]+ (/[^`]*)`", row[0])
        }
        assert paths
        assert paths.isdisjoint(served) if row[1].startswith("refused") else paths <= served, row


def test_the_table_of_flags_says_what_the_launcher_does() -> None:
    section = MIGRATION.read_text().partition("## Flags and variables")[2].partition("## Routes")[0]
    rows = [
        row
        for row in re.findall(r"^\|.+\|$", section, re.MULTILINE)
        if not row.startswith(("| flag", "| variable", "|--"))
    ]
    assert rows == [flag_row(flag) for flag in (*FLAGS, *VARIABLES)]


def flag_row(flag: TgiFlag) -> str:
    fate = WORDS[flag.fate]
    if flag.harmless:
        fate += " (but for " + ", ".join(f"`{value}`" for value in flag.harmless) + ")"
    variable = f"`{flag.variable}`" if flag.variable else ""
    names = ", ".join(f"`{name}`" for name in (flag.name, flag.short) if name)
    cells = [names, variable, fate, flag.words] if names else [variable, fate, flag.words]
    return f"| {' | '.join(cells)} |"
