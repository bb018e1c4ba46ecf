"""Sizes, names and documents that a reviewer would otherwise have to check by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.field_docs import field_docs
from common.settings import Settings

ROOT = Path(__file__).parents[2]
PACKAGES = ("common", "web", "workers", "ops")
MOST_LINES = 400


def sources() -> list[Path]:
    return [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]


def string_literals(file: Path) -> Iterator[str]:
    """Strings that the code uses: docstrings are left out."""
    tree = ast.parse(file.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


def test_no_module_is_too_long() -> None:
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in sources()}
    assert not {file: length for file, length in lengths.items() if length > MOST_LINES}


def test_every_module_says_what_it_is() -> None:
    assert not [
        str(file)
        for file in sources()
        if file.read_text().strip() and not ast.get_docstring(ast.parse(file.read_text()))
    ]


def test_every_setting_is_documented() -> None:
    docs = field_docs(Settings)
    assert not [name for name in Settings.model_fields if len(docs.get(name, "")) < 10]


def test_redis_names_are_made_in_one_file_alone() -> None:
    """A Redis name of ours is a prefix, a colon and a kind from `common/keys.py`."""
    keys = (ROOT / "common/keys.py").read_text()
    kinds = set(re.findall(r"\{self\.prefix\}:(\w+)", keys))
    assert {"queue", "worker", "reply", "control"} <= kinds
    name = re.compile(rf"(?:^|tgq|\}}):(?:{'|'.join(sorted(kinds))})(?::|$)")
    strangers = {
        f"{file.relative_to(ROOT)}: {text!r}"
        for file in sources()
        if file != ROOT / "common/keys.py"
        for text in string_literals(file)
        if name.search(text)
    }
    assert not strangers


def test_every_redis_name_is_described() -> None:
    keys = (ROOT / "common/keys.py").read_text()
    described = set(re.findall(r"^\| \{p\}:(\w+)", keys, re.MULTILINE))
    made = set(re.findall(r"\{self\.prefix\}:(\w+)", keys))
    # kombu wants a name for a lock that nobody ever writes.
    assert made - described <= {"unacked_mutex"}


def test_the_makefile_installs_what_is_pinned() -> None:
    for lock in ("requirements.lock", "requirements-dev.lock"):
        lines = [line for line in (ROOT / lock).read_text().splitlines() if line and not line.startswith("#")]
        assert not [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)]


@pytest.mark.parametrize(
    ("direct", "lock"), [("requirements.in", "requirements.lock"), ("requirements-dev.in", "requirements-dev.lock")]
)
def test_what_is_imported_is_pinned(direct: str, lock: str) -> None:
    def names(file: str) -> set[str]:
        found = re.findall(r"^([A-Za-z0-9][\w.-]*)", (ROOT / file).read_text(), re.MULTILINE)
        return {re.sub(r"[-_.]+", "-", name).lower() for name in found}

    assert names(direct) <= names(lock)
