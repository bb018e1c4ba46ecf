"""`tgq env`: every setting, its value and where it came from."""

from __future__ import annotations

import json

from common.settings import Settings
from ops.columns import print_columns
from ops.configuration import Configuration


def run(configuration: Configuration, *, as_json: bool) -> int:
    """Print the settings as a table, or as one JSON object by variable; returns the exit status."""
    shown = {
        Settings.variable(name): {"value": configuration.shown(name), "source": configuration.source(name)}
        for name in Settings.model_fields
    }
    if as_json:
        print(json.dumps(shown, indent=2))
        return 0
    rows = [(variable, _plain(entry["value"]), str(entry["source"])) for variable, entry in shown.items()]
    print_columns([("SETTING", "VALUE", "SOURCE"), *rows])
    return 0


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
