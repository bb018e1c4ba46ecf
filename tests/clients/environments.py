"""Environments for clients, made once and kept in a folder that git does not see."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.clients.catalogue import Family

SECONDS = 1200
"""For making one environment."""


class NotInstallable(Exception):
    """An environment cannot be made here; the message says why."""


class Environment:
    """Where one family of clients lives.

    Args:
        root: the folder of all environments.
    """

    def __init__(self, family: Family, root: Path) -> None:
        self.family = family
        self.folder = root / family.name
        self._mark = self.folder / ".installed"

    def make(self) -> None:
        """Install what is asked for; does nothing when that was done before.

        Raises:
            NotInstallable: it did not work.
        """
        content = f"{sys.version_info[:2]} {self.family.requirements} {self.family.shares}"
        digest = hashlib.sha256(content.encode()).hexdigest()
        if self._mark.exists() and self._mark.read_text() == digest:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if self.family.javascript:
            self._install_javascript()
        else:
            self._install_python()
        self._mark.write_text(digest)

    def command(self, programs: Path, services: str) -> list[str]:
        """What runs the family's checks."""
        program = programs / self.family.program
        if self.family.javascript:
            # Modules are looked for from where a program lies.
            shutil.copy(program, self.folder)
            return ["node", str(self.folder / program.name), services]
        return [str(self._python), "-P", str(programs.parent / "run_checks.py"), str(program), services]

    @property
    def _python(self) -> Path:
        return self.folder / "bin" / "python"

    def _install_python(self) -> None:
        _run([sys.executable, "-m", "venv", str(self.folder)])
        if self.family.shares:
            (site,) = self.folder.glob("lib/python*/site-packages")
            (site / "zz_shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
        _run([str(self._python), "-m", "pip", "install", "--quiet", "--no-cache-dir", *self.family.requirements])

    def _install_javascript(self) -> None:
        if not (shutil.which("node") and shutil.which("npm")):
            raise NotInstallable("there is no node")
        (self.folder / "package.json").write_text(json.dumps({"private": True}))
        quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
        _run(["npm", "install", *quiet, *self.family.requirements], self.folder)


def _run(command: list[str], folder: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotInstallable(f"not done after {SECONDS} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line or "ERR!" in line] or ["?"]
        raise NotInstallable(lines[-1])
