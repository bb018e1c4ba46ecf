"""`tgq batch` as people and programs use it: what it prints where, the files it writes, its exit status."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import httpx
import pytest
from typer.testing import CliRunner

from ops.cli import app
from ops.local_service import LocalService
from tests.acceptance.batches import by_id, content, jsonl, line, saying
from tests.terminal import Terminal

SECONDS = 200
DONE, FAILED, BAD_USAGE, WITH_FAILED_LINES, INTERRUPTED = 0, 1, 2, 3, 130


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "ops.cli", "batch", *map(str, arguments)]


def environment(service: LocalService | None = None, **variables: str) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PORT", "REDIS_URL", "API_KEY")}
    return {**kept, **({"TGQ_URL": service.url} if service else {}), "COLUMNS": "120", **variables}


@pytest.fixture
def tgq(batch_service: LocalService, tmp_path: Path) -> _Batch:
    return _Batch(batch_service, tmp_path)


class _Batch:
    def __init__(self, service: LocalService, directory: Path) -> None:
        self.service, self.directory = service, directory

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """In this process, for each of its own costs a second."""
        variables = environment(self.service)
        with mock.patch.dict(os.environ, variables, clear=True), contextlib.chdir(self.directory):
            done = CliRunner().invoke(app, ["batch", *map(str, arguments)])
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    def process(self, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments),
            env=environment(self.service, **variables),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def file(self, *lines: dict[str, object], name: str = "in.jsonl") -> Path:
        path = self.directory / name
        path.write_bytes(jsonl(lines))
        return path


def test_submit_watch_list_fetch(tgq: _Batch) -> None:
    source = tgq.file(*(saying(str(number), f"answer {number}") for number in range(30)))
    submitted = tgq.process("submit", source, "--metadata", "run=7")
    assert submitted.returncode == DONE, submitted.stderr
    batch_id = submitted.stdout.strip()
    watched = tgq.process("watch", batch_id)
    assert watched.returncode == DONE
    assert watched.stdout == ""
    assert f"{batch_id}: completed, 30 of 30 lines answered" in watched.stderr
    (listed,) = [row.split() for row in tgq.process("list").stdout.splitlines() if row.startswith(batch_id)]
    assert listed[1:5] == ["completed", "30", "30", "0"]
    newest = json.loads(tgq("list", "--json", "--limit", "1").stdout)
    assert [(batch["id"], batch["metadata"]) for batch in newest] == [(batch_id, {"run": "7"})]
    fetched = tgq.process("fetch", batch_id)
    assert fetched.returncode == DONE
    answers = by_id((tgq.directory / f"{batch_id}.jsonl").read_bytes())
    assert {name: content(entry) for name, entry in answers.items()} == {str(n): f"answer {n}" for n in range(30)}
    assert (
        tgq.process("fetch", batch_id, "--out", "-").stdout.encode()
        == (tgq.directory / f"{batch_id}.jsonl").read_bytes()
    )
    assert sorted(path.name for path in tgq.directory.iterdir()) == [f"{batch_id}.jsonl", "in.jsonl"]


def test_failed_lines_have_a_file_and_a_status_of_their_own(tgq: _Batch) -> None:
    source = tgq.file(saying("good", "yes"), saying("bad", "no", temperature=-1))
    submitted = tgq("submit", source, "--watch")
    assert submitted.returncode == WITH_FAILED_LINES
    batch_id = submitted.stdout.strip()
    assert tgq("fetch", batch_id, "--out", "out.jsonl").returncode == WITH_FAILED_LINES
    assert set(by_id((tgq.directory / "out.jsonl").read_bytes())) == {"good"}
    assert set(by_id((tgq.directory / "out.errors.jsonl").read_bytes())) == {"bad"}


def test_cancel(tgq: _Batch) -> None:
    source = tgq.file(*(saying(str(number), " and on", repeat=400, step_ms=100) for number in range(4)))
    batch_id = tgq("submit", source).stdout.strip()
    early = tgq("fetch", batch_id)
    assert early.returncode == FAILED
    assert "has not ended" in early.stderr
    assert tgq("cancel", batch_id).stdout == f"{batch_id}: cancelling\n"
    watched = tgq("watch", batch_id)
    assert watched.returncode == FAILED
    assert f"{batch_id}: cancelled" in watched.stderr


def test_a_wrong_file_is_told_line_by_line(tgq: _Batch) -> None:
    submitted = tgq("submit", tgq.file(saying("a", "x"), saying("a", "y")), "--watch")
    assert submitted.returncode == FAILED
    assert "line 2: " in submitted.stderr
    assert "duplicate_custom_id" in submitted.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("submit", "absent.jsonl"), BAD_USAGE, "absent.jsonl cannot be read"),
        (("submit", "empty.jsonl"), BAD_USAGE, "empty.jsonl is empty"),
        (("submit", "notes.txt"), BAD_USAGE, "line 1 of notes.txt is no request"),
        (("submit", "in.jsonl", "--metadata", "x"), BAD_USAGE, "NAME=VALUE"),
        (("submit", "in.jsonl", "--window", "7d"), FAILED, "completion_window"),
        (("submit", "in.jsonl", "--endpoint", "/v1/embeddings"), FAILED, "endpoint"),
        (("watch", "batch_unknown"), FAILED, "batch_unknown"),
        (("fetch", "batch_unknown"), FAILED, "batch_unknown"),
        (("list", "--url", "127.0.0.1:1"), FAILED, "no answer from http://127.0.0.1:1"),
        (("list", "--url", "ftp://127.0.0.1"), FAILED, "is no address"),
        (("run", "in.jsonl", "nowhere/out.jsonl"), BAD_USAGE, "there is no folder nowhere"),
        (("run", "in.jsonl", "."), BAD_USAGE, "it is a folder"),
        (("run", "absent.jsonl", "out.jsonl"), BAD_USAGE, "absent.jsonl cannot be read"),
    ],
)
def test_errors_are_one_line(tgq: _Batch, arguments: tuple[str, ...], status: int, words: str) -> None:
    tgq.file(saying("a", "x"))
    (tgq.directory / "empty.jsonl").touch()
    (tgq.directory / "notes.txt").write_text("Dear diary\n")
    ended = tgq(*arguments)
    assert (ended.returncode, ended.stdout) == (status, "")
    (said,) = ended.stderr.splitlines()
    assert said.startswith("tgq: ")
    assert words in said


def test_a_terminal_has_a_bar(tgq: _Batch) -> None:
    # Lines end one after the other, for a minute: how many are left cannot be told before some have.
    source = tgq.file(*(saying(str(number), "word " * (1 + 4 * number), step_ms=150) for number in range(100)))
    with Terminal(command("submit", source, "--watch"), environment(tgq.service)) as watching:
        for words in ("of 100 lines", "tokens/s", " left"):
            watching.see(words, SECONDS)
        found = re.search(r"batch_\w+", watching.shown)
        assert found is not None
        assert tgq("cancel", found[0]).returncode == DONE
        assert watching.end(SECONDS) == FAILED
    assert f"{found[0]}: cancelled" in watching.shown


def test_run_on_a_service(tgq: _Batch) -> None:
    source = tgq.file(saying("a", "x"), saying("b", "y", temperature=-1))
    before = httpx.get(f"{tgq.service.url}/v1/files").json()["data"]
    ended = tgq("run", source, "out.jsonl", "--url", tgq.service.url)
    assert ended.returncode == WITH_FAILED_LINES, ended.stderr
    assert set(by_id((tgq.directory / "out.jsonl").read_bytes())) == {"a"}
    assert set(by_id((tgq.directory / "out.errors.jsonl").read_bytes())) == {"b"}
    # What was put there for the run is gone again.
    assert httpx.get(f"{tgq.service.url}/v1/files").json()["data"] == before
    source.write_bytes(jsonl([saying("c", "z")]))
    assert tgq("run", source, "out.jsonl", "--url", tgq.service.url).returncode == DONE
    assert set(by_id((tgq.directory / "out.jsonl").read_bytes())) == {"c"}
    assert not (tgq.directory / "out.errors.jsonl").exists()
    # A batch that fails as a whole takes nothing away.
    source.write_bytes(jsonl([saying("a", "x"), saying("a", "y")]))
    assert tgq("run", source, "out.jsonl", "--url", tgq.service.url).returncode == FAILED
    assert set(by_id((tgq.directory / "out.jsonl").read_bytes())) == {"c"}
    # What is no file stays what it is.
    pipe = tgq.directory / "pipe"
    os.mkfifo(pipe)
    source.write_bytes(jsonl([saying("d", "z")]))
    ended = tgq.process("run", source, "-", "--errors", pipe, "--url", tgq.service.url)
    assert (ended.returncode, set(by_id(ended.stdout.encode()))) == (DONE, {"d"})
    assert pipe.is_fifo()


def test_run_starts_what_it_needs_and_a_signal_leaves_what_is_answered(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    quick = [saying(f"quick {number}", "now") for number in range(10)]
    slow = [saying(f"slow {number}", " and on", repeat=900, step_ms=200) for number in range(10)]
    source.write_bytes(jsonl([*quick, *slow]))
    log = tmp_path / "log"
    # Others' settings are not its own.
    variables = environment(MODEL_ID="scripted", REDIS_URL="redis://127.0.0.1:1/0", API_KEY="secret", PORT="1")
    with log.open("wb") as output:
        running = subprocess.Popen(command("run", source, tmp_path / "out.jsonl"), env=variables, stderr=output)
    try:
        deadline = time.monotonic() + SECONDS
        while "10 of 20 lines" not in log.read_text():
            assert running.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        assert running.wait(SECONDS) == INTERRUPTED
    finally:
        running.kill()
        running.wait()
    answers = by_id((tmp_path / "out.jsonl").read_bytes())
    assert set(answers) == {entry["custom_id"] for entry in quick}
    left = by_id((tmp_path / "out.errors.jsonl").read_bytes())
    assert {entry["error"]["code"] for entry in left.values()} == {"batch_cancelled"}
    assert set(left) == {entry["custom_id"] for entry in slow}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "log", "out.errors.jsonl", "out.jsonl"]


def test_run_for_completions_to_the_end(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bodies = [{"prompt": f'<<script {{"text": "number {number}"}}>>', "max_tokens": 20} for number in range(200)]
    source.write_bytes(jsonl(line(str(n), body, "/v1/completions") for n, body in enumerate(bodies)))
    ended = subprocess.run(
        command("run", source, output, "--model-id", "scripted"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == DONE, ended.stderr
    assert ended.stdout == ""
    texts = {name: e["response"]["body"]["choices"][0]["text"] for name, e in by_id(output.read_bytes()).items()}
    assert texts == {str(number): f"number {number}" for number in range(200)}
