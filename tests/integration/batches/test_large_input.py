"""A file with very many lines is looked through, and its lines are told of, in bounded memory.

`TGQ_BATCH_INTAKE_LINES=1000000` makes it the full one; `pytest -s` shows the figures.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.settings import Settings
from tests.integration.batches.runners import TENANT, batches, request, settings_for

LINES = int(os.environ.get("TGQ_BATCH_INTAKE_LINES", "30000"))
GROWTH_MIB = 160
"""The lines of the full file as Python objects would take several times as much."""


@contextmanager
def runner_process(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    names = ("redis_url", "model_id", "cache_dir", "batch_storage", "batch_max_requests")
    environment = {Settings.variable(name): str(getattr(settings, name)) for name in names}
    process = subprocess.Popen(
        [sys.executable, "-m", "ops.cli", "batch-worker"], env=os.environ | environment, stderr=subprocess.DEVNULL
    )
    try:
        yield process
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def peak_mib(process: subprocess.Popen[bytes]) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.timeout(900)
async def test_memory_does_not_grow_with_the_lines(tmp_path: Path, redis_url: str) -> None:
    settings = settings_for(tmp_path, redis_url, batch_max_requests=LINES)
    data = b"".join(
        json.dumps(request(f"request-{number}", f"Question {number}?", max_tokens=20)).encode() + b"\n"
        for number in range(LINES)
    )
    async with batches(settings) as here:
        with runner_process(settings) as process:
            one = await here.create([request("one")])
            await here.reaches(one, "in_progress", seconds=60)
            before = peak_mib(process)
            began = time.monotonic()
            large = await here.create(data)
            await here.reaches(large, "in_progress", seconds=600)
            passed, looked_through = time.monotonic() - began, peak_mib(process)
            # No worker is there: every line goes to the error file.
            await here.store.cancel(TENANT, large.id)
            ended = await here.ended(large, 600)
            told = peak_mib(process)
        assert (ended.status, ended.request_counts.failed) == ("cancelled", LINES)
        assert len(await here.results(ended.error_file_id)) == LINES
    print(
        f"\n{LINES} lines, {len(data) / 2**20:.0f} MiB: looked through in {passed:.1f} s; peak memory {before:.0f} MiB before, "
        f"{looked_through:.0f} MiB with its lines indexed, {told:.0f} MiB with all of them told of"
    )
    assert told - before < GROWTH_MIB
