"""Builds the images' file systems without a container engine, and tries what is in them.

    sudo python -m tests.images [FOLDER]

Takes minutes and gigabytes; FOLDER keeps what was built. Ends with 1 if something failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.compose_file import ROOT
from tests.images.builder import Builder

CHECKS: dict[str, list[list[str]]] = {
    "web": [["--version"], ["web", "--help"], ["env"]],
    "worker": [["--version"], ["worker", "--help"]],
}


def main(folder: Path) -> int:
    builder = Builder(ROOT / "ops/docker/Dockerfile", ROOT, folder)
    failed = 0
    for image, commands in CHECKS.items():
        builder.build(image, {})
        for arguments in commands:
            status = subprocess.run(
                builder.command(image, arguments), env=builder.environment(image), stdout=subprocess.DEVNULL
            ).returncode
            print(f"{'ok' if status == 0 else 'FAILED'}: {image}: tgq {' '.join(arguments)}", flush=True)
            failed += status != 0
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(main(Path(folder)))
