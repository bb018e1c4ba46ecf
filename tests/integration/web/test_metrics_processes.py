"""Metrics shared by processes that come and go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_PROCESS = """
import sys
from common.limits import Limits
from common.metrics import WebMetrics, exposition
metrics = WebMetrics(Limits(max_input_tokens=10, max_total_tokens=20))
if sys.argv[1] == "work":
    metrics.request_count.inc()
    metrics.in_flight.inc()
print(exposition(metrics.families()).decode())
"""


def _run(directory: Path, what: str) -> list[str]:
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(directory)}
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS, what], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


def test_counters_outlive_their_process_and_gauges_do_not(tmp_path: Path) -> None:
    assert "tgq_requests_in_flight 1" in _run(tmp_path, "work")
    second = _run(tmp_path, "work")
    assert "tgi_request_count 2" in second
    assert "tgq_requests_in_flight 1" in second
    last = _run(tmp_path, "look")
    assert "tgi_request_count 2" in last
    assert "tgq_requests_in_flight 0" in last
