"""From what TGI's launcher is told to the settings of this service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ops.configuration import variables
from ops.launcher.flags import FLAGS, VARIABLES, TgiFlag

_FALSE = ("", "0", "f", "false", "n", "no", "off")
"""Values of a variable that leave a flag without a value as it is, in any case."""
_LIMITS_OF_INPUT = ("--max-input-tokens", "--max-input-length")


@dataclass
class Translation:
    """What becomes of a command line and an environment."""

    settings: dict[str, str] = field(default_factory=dict)
    """Field of the settings -> text; what the settings read from the environment themselves is not among them."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables to set for libraries."""
    ignored: list[str] = field(default_factory=list)
    """`--flag: why` of what has no effect."""
    refused: list[str] = field(default_factory=list)
    """`--flag: why` of what cannot be had; nothing may start then."""


def translate(given: Mapping[str, str], environment: Mapping[str, str]) -> Translation:
    """
    Args:
        given: flag with its dashes -> text.
        environment: of the process; an empty variable counts as not set.
    """
    result = Translation()
    for known in (*FLAGS, *VARIABLES):
        name, value = _given(known, given, environment)
        if value is None:
            continue
        if known.fate == "honoured":
            _honour(known, name, value, environment, result)
        elif known.fate == "ignored":
            result.ignored.append(f"{name}: {known.words}")
        elif value.lower() not in known.harmless:
            what = name if known.switch else f"{name} {value}" if name.startswith("-") else f"{name}={value}"
            result.refused.append(f"{what}: {known.words}")
    limits = [
        name for known in FLAGS if known.name in _LIMITS_OF_INPUT and (name := _given(known, given, environment)[0])
    ]
    if len(limits) > 1:
        result.refused.append(f"{' and '.join(limits)}: they are one setting; give one of them")
    token = environment.get("HF_TOKEN") or environment.get("HF_API_TOKEN")
    if token and not environment.get("HF_TOKEN"):
        result.environment["HF_TOKEN"] = token
    return result


def _given(known: TgiFlag, given: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, str | None]:
    """The name it was given by and its text; a flag wins over its variable."""
    if known.name in given:
        return known.name, given[known.name]
    value = environment.get(known.variable, "") if known.variable else ""
    if not value or (known.switch and value.lower() in _FALSE):
        return "", None
    return known.variable, value


def _honour(known: TgiFlag, name: str, value: str, environment: Mapping[str, str], result: Translation) -> None:
    """Settings read their own variables by themselves; flags, and variables by other names, they do not."""
    if not known.setting:
        return
    own = variables(known.setting)
    if name == known.name or (name not in own and not any(environment.get(variable) for variable in own)):
        result.settings.setdefault(known.setting, value)
