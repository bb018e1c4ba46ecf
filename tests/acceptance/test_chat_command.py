"""`tgq chat` on a terminal and in a pipe, and the launcher that TGI's users know, up to its first answer."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from common.settings import Settings
from ops.cli import app
from ops.local_service import LocalService
from tests.acceptance.native import until
from tests.acceptance.observation import Observer
from tests.hub import hub
from tests.terminal import CTRL_C, CTRL_D, Terminal
from tests.tiny_checkpoint import write_tiny_checkpoint
from workers.engine.default_model import ensure_default_model

TGQ = [sys.executable, "-P", "-m", "ops.cli"]
LAUNCHER = [sys.executable, "-P", "-m", "ops.launcher.command"]


def script(**fields: object) -> str:
    return f"<<script {json.dumps(fields)}>>"


def chat(service: LocalService, *arguments: str, stdin: str = "") -> Result:
    """In this process, which takes a tenth of the time of one of its own."""
    return CliRunner().invoke(app, ["chat", "--url", service.url, *arguments], input=stdin)


def test_a_conversation_on_a_terminal(scripted_service: LocalService, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    first = script(text="Good\x1b[31m day.\x9b2J")
    with Observer(scripted_service) as seen, Terminal([*TGQ, "chat", "--url", scripted_service.url]) as terminal:
        at = terminal.see(">>> ")
        assert "scripted" in terminal.shown

        terminal.press(f"Hello \\\n{first}\n")
        at = terminal.see("Good\u241b[31m day.\ufffd2J\r\n>>> ", after=at)

        # Ctrl-C ends the request where it is computed, and the conversation goes on.
        terminal.press(f"{script(text=' tick', repeat=1000, step_ms=50)}\n")
        at = terminal.see(" tick tick tick", after=at)
        terminal.press(CTRL_C)
        at = terminal.see("(stopped)", after=at)
        at = terminal.see(">>> ", after=at)
        until(seen.idle, "the worker to let go of the request")

        terminal.press("half a line")
        at = terminal.see("half a line", after=at)
        at = _interrupted(terminal, at)
        terminal.press(f"{script(text='Still here.')}\n")
        at = terminal.see("Still here.\r\n>>> ", after=at)
        terminal.press(f"/save {saved}\n")
        at = terminal.see(f"saved to {saved}", after=at)
        terminal.see(">>> ", after=at)  # before that the key is the terminal's, and lost
        terminal.press(CTRL_D)
        assert terminal.end() == 0
    kept = json.loads(saved.read_text())
    assert [turn["role"] for turn in kept] == ["user", "assistant"] * 3
    assert kept[0]["content"] == f"Hello \n{first}"
    assert kept[1]["content"] == "Good\x1b[31m day.\x9b2J"
    assert re.fullmatch(r"( tick){3,}", kept[3]["content"])


def _interrupted(terminal: Terminal, at: int) -> int:
    """Ctrl-C until there is a new prompt: one that comes just before the editor waits for a key is seen with the next key."""
    for _ in range(10):
        terminal.press(CTRL_C)
        with contextlib.suppress(AssertionError):
            return terminal.see(">>> ", 3.0, after=at)
    raise AssertionError(terminal.shown[at:])


def test_one_answer_in_a_pipe(scripted_service: LocalService) -> None:
    answered = chat(scripted_service, stdin=f"Say it.\n{script(text='It.')}\n")
    assert (answered.stdout, answered.exit_code) == ("It.\n", 0)
    answered = chat(scripted_service, "--max-tokens", "2", script(text=" a b c d"))
    assert (answered.stdout, answered.exit_code) == (" a b\n", 0)
    assert answered.stderr == "tgq: the answer was cut off (length)\n"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--quick", script(text="a b c", raise_at=2)], 1, "the answer broke off: Request failed during generation"),
        (["x", "--model", "nobody's"], 1, "The model `nobody's` does not exist"),
        (["x", "--temperature", "-1"], 1, "`temperature` must be"),
        (["x", "--url", "http://127.0.0.1:1"], 1, "no answer from http://127.0.0.1:1"),
        ([], 2, "there is no question"),
    ],
)
def test_what_goes_wrong_is_said(scripted_service: LocalService, arguments: list[str], status: int, words: str) -> None:
    failed = chat(scripted_service, *arguments)
    assert failed.exit_code == status
    assert words in failed.stderr
    assert len(failed.stderr.splitlines()) == 1


def test_the_launcher_of_tgi_serves_a_model_of_the_hub(tmp_path: Path) -> None:
    """Started as TGI is, with the model still to be fetched; up to the first answer."""
    write_tiny_checkpoint(tmp_path / "model", ensure_default_model(Settings.of(), lambda stage, fraction: None))
    flags = "--hostname 127.0.0.1 --port 0 --num-shard 1 --max-input-length 100 --max-total-tokens=200 --api-key secret"
    environment = {name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "HF_HUB_OFFLINE")}
    environment |= {"MODEL_ID": "owner/tiny", "TGQ_DEVICE": "cpu", "TGQ_BATCH_WORKERS": "0", "MASTER_PORT": "29500"}
    out, err = tmp_path / "out", tmp_path / "err"
    with (
        hub("owner/tiny", tmp_path / "model", bytes_per_second=4e6) as address,
        out.open("wb") as stdout,
        err.open("wb") as stderr,
    ):
        environment |= {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home")}
        launcher = subprocess.Popen(
            [*LAUNCHER, *flags.split(), "--huggingface-hub-cache", str(tmp_path / "hub"), "--usage-stats=off", "--env"],
            env=environment,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            _use_until_it_ends(launcher, out, err)
        finally:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)
                launcher.wait()
    assert re.search(r"^MAX_TOTAL_TOKENS +200 +--max-total-tokens$", out.read_text(), re.MULTILINE)
    assert (tmp_path / "hub" / "models--owner--tiny").is_dir()
    told = err.read_text()
    assert "secret" not in out.read_text() + told
    warning = next(line for line in told.splitlines() if "without effect" in line)
    assert "--usage-stats: " in warning
    assert "MASTER_PORT: " in warning
    # How far it is with what takes longer than a heartbeat, and nothing of what terminals are told.
    assert re.search(r"^tgq: downloading the model: \d+% \([\d.]+ of 12\.\d MB\)$", told, re.MULTILINE)
    assert not set(told) & {"\r", "\x1b"}


def _use_until_it_ends(launcher: subprocess.Popen[bytes], out: Path, err: Path) -> None:
    deadline = time.monotonic() + 240
    while not (found := re.search(r"^Ready: owner/tiny on (\S+)", out.read_text(), re.MULTILINE)):
        assert launcher.poll() is None, err.read_text()[-3000:]
        assert time.monotonic() < deadline, err.read_text()[-3000:]
        time.sleep(0.05)
    command = ["chat", "--url", found[1], "--max-tokens", "3", "--temperature", "0", "Hello"]
    answered = CliRunner().invoke(app, command, env={"API_KEY": "secret"})
    assert answered.exit_code == 0, answered.stderr
    assert answered.stdout
    assert answered.stderr == "tgq: the answer was cut off (length)\n"
    refused = CliRunner().invoke(app, command, env={"API_KEY": None})
    assert refused.exit_code == 1
    assert "--api-key" in refused.stderr
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=60) == 0
