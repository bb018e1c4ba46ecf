"""What a Dockerfile says: its stages, and the instructions of each."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Stage:
    """One `FROM ... AS name` and what follows it."""

    name: str
    base: str
    """Another stage's name, or an image's."""
    steps: list[tuple[str, str]] = field(default_factory=list)
    """Instruction and its text, in order, continued lines joined; ENV and ARG are among them."""

    def words(self, instruction: str) -> list[str]:
        """The last one's JSON list (`ENTRYPOINT`, `CMD`), or its words."""
        text = next((text for name, text in reversed(self.steps) if name == instruction), "")
        return [str(word) for word in json.loads(text)] if text.startswith("[") else shlex.split(text)

    @property
    def environment(self) -> dict[str, str]:
        """Of its own ENV instructions."""
        return dict(pair for name, text in self.steps if name == "ENV" for pair in assignments(text))


def assignments(text: str) -> list[tuple[str, str]]:
    """`A=1 B=2`, as pairs."""
    return [(name, value) for word in shlex.split(text) for name, _, value in (word.partition("="),)]


def read_dockerfile(path: Path) -> dict[str, Stage]:
    """The stages by name, in order. `ARG`s before the first stage are put into its base."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    stages: dict[str, Stage] = {}
    defaults: dict[str, str] = {}
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        instruction, _, text = line.strip().partition(" ")
        text = text.strip()
        if instruction == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", text).groups()  # type: ignore[union-attr]
            for variable, value in defaults.items():
                base = base.replace(f"${{{variable}}}", value)
            stages[name] = Stage(name, base)
        elif not stages:
            defaults |= dict(assignments(text))
        else:
            list(stages.values())[-1].steps.append((instruction, text))
    return stages
