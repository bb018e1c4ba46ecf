"""docker-compose.yml as the tests read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
OURS = ("web", "worker", "batch-worker")
"""Services that run our own images."""


def compose(file: str = "docker-compose.yml", variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The file with `${NAME:-default}` replaced, `$$` made `$`, and YAML's merges carried out."""

    def value(found: re.Match[str]) -> str:
        return (variables or {}).get(found[1]) or found[2]

    text = re.sub(r"\$\{(\w+):-([^}]*)\}", value, (ROOT / file).read_text()).replace("$$", "$")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def seconds(duration: str) -> float:
    """Of `90s` or `1m30s`."""
    units = {"s": 1, "m": 60, "h": 3600}
    return float(sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([smh])", duration)))
