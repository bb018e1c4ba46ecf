"""Runs the checks of one client; started by the interpreter of that client's environment, so it needs nothing but Python.

    python -P run_checks.py PROGRAM SERVICES

`PROGRAM` is a file of `tests/clients/programs`: its functions named `check_...` are called one after another with what
`SERVICES`, a JSON object, says of the services. Standard output gets one JSON object a line: first `versions`, then for
each check `check`, `seconds` and `error` (null when all went well).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import inspect
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

SECONDS = 60
"""For one call of a client."""


@dataclass(frozen=True)
class Services:
    """What a check may work with."""

    scripted: str
    """Address of a service with the scripted model."""
    real: str
    """Address of a service with the default model."""
    key: str
    """Both want it."""
    model: str
    """The default model's folder."""
    folder: str
    """For files of the check's own."""

    @staticmethod
    def script(text: str, **fields: Any) -> str:
        """A prompt that makes the scripted model say `text`; see `workers.engine.scripted_model` for the fields."""
        return f"<<script {json.dumps({'text': text, **fields}, ensure_ascii=False)}>>"

    def said(self, text: str, **fields: Any) -> list[dict[str, Any]]:
        """The same as a conversation."""
        return [{"role": "user", "content": self.script(text, **fields)}]


def main(program: str, services: str) -> None:
    warnings.simplefilter("ignore")
    given = Services(**json.loads(services))
    # Clients write what they like: the results go where nobody else writes.
    results = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        module = _load(Path(program))
        _say(results, versions={name: importlib.metadata.version(name) for name in module.PACKAGES})
        for name, check in _checks(module):
            started = time.monotonic()
            error = _outcome(check, given)
            _say(results, check=name, seconds=round(time.monotonic() - started, 2), error=error)


def _load(program: Path) -> ModuleType:
    # Not the file's own name, which may be the client's.
    spec = importlib.util.spec_from_file_location(f"checks_of_{program.stem}", program)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _checks(module: ModuleType) -> Iterator[tuple[str, Callable[[Services], Any]]]:
    for name, member in list(vars(module).items()):
        if name.startswith("check_"):
            yield name.removeprefix("check_").replace("_", " "), member


def _outcome(check: Callable[[Services], Any], services: Services) -> str | None:
    try:
        if inspect.iscoroutinefunction(check):
            asyncio.run(check(services))
        else:
            check(services)
    except Exception as error:  # noqa: BLE001 - whatever a client raises is the result
        traceback.print_exc()
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {error}"
    return None


def _say(results: Any, **fields: Any) -> None:
    results.write(json.dumps(fields) + "\n")
    results.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
