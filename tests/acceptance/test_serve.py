"""`tgq serve` from the outside: what it prints works, what it started ends with it, what dies comes back."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from ops.embedded_redis import EmbeddedRedis

TGQ = Path(sys.executable).with_name("tgq")
MARK = "TGQ_TEST_MARK"
READY_SECONDS = 120.0


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"still waiting for {what} after {seconds} s"
        time.sleep(0.05)
    return found


class Serve:
    """One `tgq serve` process. What it starts can be found: by a mark in the environment that everything inherits, or, as
    Redis writes its title over its environment, by a folder for temporary files that is only this service's.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str], *, lasting: bool = False) -> None:
        self.mark = uuid.uuid4().hex
        self.temporary = directory / f"temporary-{self.mark}"
        self.temporary.mkdir()
        self.data = directory / f"{self.temporary.name}-data"
        """Where Redis may keep what it holds; a name by which it is found, too."""
        environment = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
        environment |= {"MODEL_ID": "scripted", "HOSTNAME": "127.0.0.1", "PORT": "0", **settings}
        environment |= {MARK: self.mark, "TMPDIR": str(self.temporary)}
        if lasting:
            environment["TGQ_REDIS_DATA"] = str(self.data)
        self.out, self.err = directory / "out", directory / "err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [TGQ, "serve"], env=environment, cwd=directory, stdout=out, stderr=err, start_new_session=True
            )

    def wait_ready(self) -> str:
        """Wait for the address; returns it."""

        def ready() -> bool:
            assert self.process.poll() is None, self.err.read_text()[-3000:]
            return "curl" in self.out.read_text()

        wait_for(ready, READY_SECONDS, f"the service:\n{self.err.read_text()[-3000:]}")
        found = re.search(r"http://[\d.]+:\d+", self.out.read_text())
        assert found
        return found.group()

    def curl_line(self) -> str:
        return next(line.strip() for line in self.out.read_text().splitlines() if line.strip().startswith("curl "))

    def processes(self) -> dict[int, str]:
        """Everything alive that came from this service: process id -> command line."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
                if marked or str(self.temporary) in str((folder / "cwd").readlink()):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # Gone in the meantime, or not ours to look at.
        return found

    def child(self, words: str) -> int:
        return next(pid for pid, command in self.processes().items() if words in command)

    def has_other(self, words: str, than: int) -> bool:
        return any(words in command and pid != than for pid, command in self.processes().items())

    def assert_nothing_left(self, seconds: float = 15.0) -> None:
        wait_for(lambda: not self.processes(), seconds, f"the end of {self.processes()}")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serve]]:
    started = []

    def start(*, lasting: bool = False, **settings: str) -> Serve:
        started.append(Serve(tmp_path, settings, lasting=lasting))
        return started[-1]

    yield start
    for one in started:
        one.end()


def run_curl_line(line: str) -> dict[str, Any]:
    """Run the printed command; where there is no curl, send what it says."""
    if shutil.which("curl"):
        result = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer
    command, url, option, header, data, body = shlex.split(line)
    assert (command, option, data) == ("curl", "-H", "-d")
    name, value = header.split(": ")
    request = urllib.request.Request(url, body.encode(), {name: value}, method="POST")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
        return dict(json.load(response))


def test_what_it_prints_works_and_sigterm_ends_all_of_it_but_what_redis_holds(serve: Callable[..., Serve]) -> None:
    service = serve(lasting=True)
    address = service.wait_ready()
    assert address in service.curl_line()
    assert run_curl_line(service.curl_line())["generated_text"]
    assert len(service.processes()) >= 6  # serve, Redis, worker, engine, web and its process

    found = re.search(r"REDIS_URL=(\S+)", service.out.read_text())
    assert found
    redis_url = found[1]
    with redis.Redis.from_url(redis_url, socket_timeout=5) as client:
        client.lpush("kept", "job")
    listing = subprocess.run(
        [TGQ, "ps", "--json", "--redis-url", redis_url], capture_output=True, text=True, timeout=30, check=True
    )
    (worker,) = json.loads(listing.stdout)
    assert (worker["pid"], worker["model"], worker["state"]) == (service.child("ops.cli worker"), "scripted", "ready")

    # A connection that a client keeps open for later does not hold the stop up: the grace period is longer than this wait.
    idle = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    idle.request("GET", "/health")
    assert idle.getresponse().read() is not None
    with contextlib.closing(idle):
        service.process.terminate()
        assert service.process.wait(60) == 0, service.err.read_text()[-3000:]
    service.assert_nothing_left()
    assert "Traceback" not in service.err.read_text()
    assert not list(service.temporary.iterdir())
    with (
        EmbeddedRedis(service.data, append_only=True) as server,
        redis.Redis.from_url(server.url, socket_timeout=5) as client,
    ):
        assert client.lrange("kept", 0, -1) == [b"job"]


def test_what_dies_comes_back_and_nothing_outlives_a_kill(serve: Callable[..., Serve]) -> None:
    service = serve()
    service.wait_ready()
    for words in ("ops.cli worker", "ops.cli web", "valkey-server"):
        victim = service.child(words)
        os.kill(victim, signal.SIGKILL)
        wait_for(partial(service.has_other, words, victim), 30, f"another {words}")

        def answers() -> bool:
            try:
                return bool(run_curl_line(service.curl_line()).get("generated_text"))
            except (OSError, AssertionError):  # the latter where curl is refused
                return False

        wait_for(answers, READY_SECONDS, "an answer")
    service.process.kill()
    service.process.wait()
    service.assert_nothing_left()


def test_a_second_signal_does_not_wait_for_running_requests(serve: Callable[..., Serve]) -> None:
    service = serve()
    address = service.wait_ready()
    prompt = '<<script {"text": "slow ", "repeat": 500, "step_ms": 500}>>'
    body = json.dumps({"inputs": prompt, "parameters": {"max_new_tokens": 500}})
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        head = f"POST /generate_stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body.encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        service.process.send_signal(signal.SIGINT)
        wait_for(lambda: "once more" in service.err.read_text(), 30, "the first signal's notice")
        assert "stopping: waiting for 1 answer, 90 s at most; once more to end it at once" in service.err.read_text()
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(30) == 130
    service.assert_nothing_left()


def test_a_model_that_is_not_there_ends_it_with_the_reason(serve: Callable[..., Serve]) -> None:
    service = serve(MODEL_ID="./no-such-model")
    assert service.process.wait(30) == 2
    (words,) = service.err.read_text().splitlines()
    assert words.startswith("tgq: MODEL_ID './no-such-model' is neither a folder nor a hub id")
    assert "curl" not in service.out.read_text()
    service.assert_nothing_left()


def test_a_taken_port_is_named_at_once(serve: Callable[..., Serve]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        service = serve(PORT=str(port))
        assert service.process.wait(30) == 1
    assert f"port {port}: Address already in use" in service.err.read_text()
    service.assert_nothing_left()
