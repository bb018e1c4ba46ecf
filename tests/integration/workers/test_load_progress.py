"""What `tgq worker` shows while its model loads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.integration.workers.support import REPOSITORY
from tests.terminal import CTRL_C, Terminal

COMMAND = [sys.executable, "-P", "-m", "ops.cli", "worker"]


@pytest.fixture
def environment(redis_url: str) -> dict[str, str]:
    return {
        **os.environ,
        "REDIS_URL": redis_url,
        "MODEL_ID": "tests/stand-in",
        "PYTHONPATH": str(REPOSITORY),  # the engine of the tests
        "TGQ_ENGINE_TARGET": "tests.integration.workers.stand_in_engine:run",
        "STAND_IN_LOAD_SECONDS": "1",
    }


def test_a_bar_on_a_terminal_that_is_gone_when_it_is_ready(environment: dict[str, str]) -> None:
    with Terminal(COMMAND, environment) as terminal:
        at = terminal.see("weights")
        at = terminal.see("1 of 2 parts", after=at)
        erased = terminal.see("\x1b[2K", after=at)
        terminal.see("worker_ready", after=erased)
        assert "model_loading" not in terminal.shown
        terminal.press(CTRL_C)
        assert terminal.end() == 0


def test_lines_in_the_log_elsewhere(environment: dict[str, str]) -> None:
    told = []
    with subprocess.Popen(COMMAND, env=environment, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        for line in worker.stderr:
            told.append(json.loads(line))
            if told[-1]["event"] == "worker_ready":
                break
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)
    assert worker.returncode == 0
    loading = [entry for entry in told if entry["event"] == "model_loading"]
    assert [(entry["stage"], entry["percent"], entry["detail"]) for entry in loading] == [
        ("weights", 50, "1 of 2 parts")
    ]
