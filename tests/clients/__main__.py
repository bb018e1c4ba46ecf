"""Tries real clients, unmodified and each in an environment of its own, on running services.

    python -m tests.clients [NAME ...]

Names are those of `catalogue.py`; without any all are tried. Prints a line for each check and ends with 1 if one failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.model_files import default_model_folder
from common.settings import Settings
from ops.local_service import LocalService
from tests.clients.catalogue import FAMILIES, NOT_TRIED, Family
from tests.clients.environments import Environment, NotInstallable
from tests.clients.run_checks import Services

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-clients"
KEY = "a-key-for-clients"


def main(names: list[str]) -> int:
    if unknown := set(names) - {family.name for family in FAMILIES}:
        print(f"no such client: {', '.join(sorted(unknown))}; there are {', '.join(f.name for f in FAMILIES)}")
        return 2
    ready = [made for family in FAMILIES if not names or family.name in names if (made := _made(family))]
    if not ready:
        return 1
    settings = {"API_KEY": KEY}
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalService({"MODEL_ID": "scripted", **settings}) as scripted,
        LocalService({"TGQ_DEVICE": "cpu", **settings}) as real,
    ):
        model = str(default_model_folder(Settings()))
        services = Services(scripted=scripted.url, real=real.url, key=KEY, model=model, folder=folder)
        failures = [_try(environment, services) for environment in ready]
    print()
    for name, reason in () if names else NOT_TRIED.items():
        _row(name, "", "not tried", reason)
    print(f"{sum(failures)} failed")
    return 1 if any(failures) else 0


def _made(family: Family) -> Environment | None:
    environment = Environment(family, ENVIRONMENTS)
    print(f"preparing {family.name}", flush=True)
    try:
        environment.make()
    except NotInstallable as error:
        _row(family.name, "", "not installable", str(error))
        return None
    return environment


def _try(environment: Environment, services: Services) -> int:
    """Run the checks and print how they went; returns how many failed."""
    family = environment.family
    log = environment.folder / "checks.log"
    command = environment.command(HERE / "programs", json.dumps(asdict(services)))
    failed = 0
    with (
        log.open("w") as errors,
        subprocess.Popen(command, cwd=services.folder, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        timer = threading.Timer(family.seconds, process.kill)
        timer.start()
        for line in process.stdout or ():
            failed += _show(family.name, json.loads(line))
        ending = process.wait()
        timer.cancel()
    if ending:
        failed += 1
        _row(family.name, "all checks", "failed", f"ended with {ending} ({family.seconds} s are allowed); see {log}")
    return failed


def _show(name: str, result: dict[str, Any]) -> bool:
    if "versions" in result:
        print()
        print(name, ", ".join(f"{package} {version}" for package, version in result["versions"].items()))
        return False
    error = result["error"]
    _row(name, result["check"], "failed" if error else "ok", " ".join((error or f"{result['seconds']} s").split()))
    return error is not None


def _row(name: str, check: str, outcome: str, note: str) -> None:
    print(f"  {name:<24} {check:<42} {outcome:<8} {note[:300]}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
