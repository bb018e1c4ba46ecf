"""`tgq bench serve` on a service whose pace is known, and on servers that misbehave."""

from __future__ import annotations

import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner, Result

from ops.cli import app
from ops.local_service import LocalService
from tests.acceptance.native import script, until, until_free

DONE, FAILED, WITH_FAILED_REQUESTS, INTERRUPTED = 0, 1, 3, 130
FIRST_MS, STEP_MS, TOKENS = 100, 30, 8


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    """Takes eight requests at once and refuses others."""
    settings = {"MODEL_ID": "scripted", "MAX_CONCURRENT_REQUESTS": "8", "API_KEY": "sesame"}
    with LocalService(settings) as running:
        yield running


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def paced(directory: Path) -> Path:
    """Prompts whose answers take their time."""
    return prompts(directory / "paced.jsonl", script(" and", repeat=50, first_ms=FIRST_MS, step_ms=STEP_MS))


def prompts(path: Path, *texts: str, max_tokens: int = TOKENS) -> Path:
    path.write_text("".join(json.dumps({"prompt": text, "max_tokens": max_tokens}) + "\n" for text in texts))
    return path


def bench(url: str, *arguments: str | Path, key: str = "sesame") -> Result:
    """What the command does; in this process, for each of its own costs a second."""
    with mock.patch.dict(os.environ, {"API_KEY": key, "COLUMNS": "200"}):
        return CliRunner().invoke(app, ["bench", "serve", "--url", url, *map(str, arguments)])


def told(done: Result, file: Path, status: int = DONE) -> dict[str, Any]:
    assert done.exit_code == status, done.output
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.parametrize("api", ["tgi", "openai-chat", "openai-completions"])
def test_a_sweep_shows_the_pace_of_the_model(service: LocalService, directory: Path, paced: Path, api: str) -> None:
    file = directory / f"{api}.json"
    options = ("--api", api, "--dataset", paced, "--concurrency", "1,4", "--num-prompts", "4", "--json", file)
    done = bench(service.url, *options, "--goodput", f"ttft:{FIRST_MS / 2} e2e:60000")
    found = told(done, file)
    assert [point["load"] for point in found["points"]] == [{"kind": "concurrency", "value": n} for n in (1, 4)]
    for point in found["points"]:
        assert (point["sent"], point["completed"], point["failures"]) == (4, 4, {})
        assert (point["output_tokens"], point["tokens_counted_by"]) == (4 * TOKENS, "usage")
        # No upper bounds: this machine has other things to do. What makes a first token late is not the pace's.
        ttft, tpot, itl, e2e = (point[f"{name}_ms"]["mean"] for name in ("ttft", "tpot", "itl", "e2e"))
        assert point["ttft_ms"]["p50"] >= FIRST_MS
        assert point["e2e_ms"]["p50"] >= FIRST_MS + (TOKENS - 1) * STEP_MS
        assert FIRST_MS + (TOKENS - 1) * STEP_MS <= ttft + (TOKENS - 1) * tpot + 1 <= e2e + 2
        assert itl == pytest.approx(tpot, rel=0.01)
        assert point["output_throughput"] == pytest.approx(4 * TOKENS / point["duration_s"])
        assert point["request_goodput"] == 0
        assert point["prompt_tokens"] > 4 * TOKENS
    one, four = found["points"]
    assert (one["max_concurrent_requests"], four["max_concurrent_requests"]) == (1, 4)
    assert one["duration_s"] >= 4 * (FIRST_MS + (TOKENS - 1) * STEP_MS) / 1000
    assert found["servers"][0]["model"] == ("" if api == "tgi" else "scripted")
    assert "sesame" not in done.output + file.read_text()
    assert "concurrency 4" in done.stdout


def test_latency_counts_from_when_a_request_was_due(service: LocalService, directory: Path, paced: Path) -> None:
    file = directory / "due.json"
    load = ("--request-rate", "inf", "--num-prompts", "5", "--max-concurrency", "1", "--warmup", "0")
    done = bench(service.url, *load, "--dataset", paced, "--output-len", "2", "--json", file)
    (point,) = told(done, file)["points"]
    alone = FIRST_MS + (TOKENS - 1) * STEP_MS
    assert point["e2e_ms"]["max"] >= 5 * alone
    assert point["ttft_ms"]["max"] >= 4 * alone + FIRST_MS
    assert any("--max-concurrency 1 held requests back" in note for note in told(done, file)["notes"])


def test_two_servers_are_compared_round_by_round(service: LocalService, directory: Path) -> None:
    file, report = directory / "compared.json", directory / "compared.html"
    load = ("--concurrency", "2", "--num-prompts", "4", "--rounds", "2", "--output-len", "4", "--input-len", "5")
    done = bench(service.url, "--compare", service.url, *load, "--json", file, "--report", report)
    found = told(done, file)
    first, second = found["points"]
    assert [server["name"][0] for server in found["servers"]] == ["A", "B"]
    assert first["server"] != second["server"]
    assert [len(point["rounds"]) for point in (first, second)] == [2, 2]
    (ratios,) = found["ratios"]
    rates = [
        two["output_throughput"] / one["output_throughput"]
        for one, two in zip(*(p["rounds"] for p in (first, second)), strict=True)
    ]
    told_ratio = ratios["figures"]["output tokens/s"]
    assert told_ratio["rounds"] == pytest.approx(rates)
    assert (told_ratio["min"], told_ratio["max"]) == (pytest.approx(min(rates)), pytest.approx(max(rates)))
    # In turn, and the other way round the next time.
    order = [line.split(": ")[1] for line in done.stderr.splitlines() if "round" in line]
    assert [name[0] for name in order] == ["A", "B", "B", "A"]
    assert report.read_text().startswith("<!doctype html>")


def test_failures_are_counted_by_kind(service: LocalService, directory: Path) -> None:
    file = directory / "failures.json"
    dataset = prompts(
        directory / "failing.jsonl",
        script("yes"),
        script("no", repeat=9, raise_at=2),
        "far too long " * 2_000,
        script("late", first_ms=30_000),
    )
    load = ("--concurrency", "4", "--num-prompts", "4", "--timeout", "6", "--warmup", "0")
    done = bench(service.url, *load, "--api", "tgi", "--dataset", dataset, "--json", file)
    (point,) = told(done, file, WITH_FAILED_REQUESTS)["points"]
    assert point["failures"] == {"stream error": 1, "HTTP 422": 1, "timeout": 1}
    assert (point["completed"], point["sent"]) == (1, 4)
    assert "the script raises at token 2" in done.stdout


def test_refusals_are_no_failures_of_the_bench(service: LocalService, directory: Path) -> None:
    file = directory / "refused.json"
    # None of the first eight may be answered before the others come.
    dataset = prompts(directory / "slow.jsonl", script("at last", first_ms=2000))
    load = ("--request-rate", "inf", "--num-prompts", "40", "--dataset", dataset, "--warmup", "0")
    until_free(service)
    (point,) = told(bench(service.url, *load, "--json", file), file, WITH_FAILED_REQUESTS)["points"]
    assert point["failures"]["HTTP 429"] + point["completed"] == 40
    assert point["completed"] >= 8


@pytest.mark.parametrize(
    ("url", "key", "words"),
    [
        ("http://127.0.0.1:1", "sesame", "http://127.0.0.1:1 does not answer"),
        (None, "wrong", "HTTP 401"),
        (None, "sesame", "nobody"),
    ],
)
def test_a_server_that_does_not_answer_ends_it(service: LocalService, url: str | None, key: str, words: str) -> None:
    model = ("--model", "nobody") if words == "nobody" else ()
    done = bench(url or service.url, *model, "--num-prompts", "1", key=key)
    assert (done.exit_code, done.stdout) == (FAILED, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("tgq: ")
    assert words in line
    assert "sesame" not in line


def test_a_signal_keeps_what_was_measured(service: LocalService, directory: Path, paced: Path) -> None:
    file, log = directory / "stopped.json", directory / "log"
    command = [
        sys.executable,
        "-m",
        "ops.cli",
        "bench",
        "serve",
        "--url",
        service.url,
        "--api",
        "tgi",
        "--json",
        str(file),
    ]
    load = ["--concurrency", "1,3", "--num-prompts", "2", "--dataset", str(paced), "--rounds", "1000"]
    with log.open("wb") as output:
        running = subprocess.Popen(
            [*command, *load], env={**os.environ, "API_KEY": "sesame"}, stdout=output, stderr=output
        )
    try:
        until(lambda: "concurrency 3, round 1 " in log.read_text(), "the first round", 120)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == INTERRUPTED, log.read_text()
    finally:
        running.kill()
        running.wait()
    found = json.loads(file.read_text())
    assert found["stopped"] is True
    assert all(point["completed"] >= 2 for point in found["points"])
    assert "The run was stopped" in log.read_text()


EVENT = b'data: {"token": {"id": 1, "text": "x"}}\n\n'
LAST = b'data: {"token": {"id": 1, "text": "x"}, "generated_text": "x"}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextmanager
def server_that_says(*parts: bytes) -> Iterator[str]:
    """Answers the first request of each connection with these bytes, and ends the connection after it has another one."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for answer in parts:
                length = 0
                while (line := self.rfile.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                if not line:
                    return
                self.rfile.read(length)
                self.wfile.write(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def chunked(*events: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return HEAD + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + end


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (chunked(EVENT, EVENT, end=b""), "broken stream"),
        (chunked(EVENT, EVENT), "broken stream"),
        (b"", "broken stream"),
        (chunked(b'data: {"generated_text": ""}\n\n'), "no output"),
        (chunked(b"data: what?\n\n"), "bad answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi", "bad answer"),
        (b"SSH-2.0\r\n\r\n", "bad answer"),
    ],
)
def test_servers_that_misbehave(directory: Path, answer: bytes, kind: str) -> None:
    file = directory / "misbehaved.json"
    with server_that_says(answer) as url:
        load = ("--api", "tgi", "--concurrency", "1", "--num-prompts", "2", "--warmup", "0", "--timeout", "20")
        (point,) = told(bench(url, *load, "--json", file), file, FAILED)["points"]
    assert point["failures"] == {kind: 2}


def test_connections_are_used_again_and_replaced_where_the_server_ended_them(directory: Path) -> None:
    file = directory / "again.json"
    # The third request on a connection finds it closed: it goes out again on a new one.
    with server_that_says(chunked(EVENT, LAST), chunked(EVENT, LAST)) as url:
        load = ("--api", "tgi", "--concurrency", "1", "--num-prompts", "7", "--warmup", "0", "--timeout", "20")
        found = told(bench(url, *load, "--output-len", "2", "--json", file), file)
    (point,) = found["points"]
    assert (point["completed"], point["output_tokens"], point["tokens_counted_by"]) == (7, 14, "events")
    assert any("told no usage for 7 answers" in note for note in found["notes"])
