"""nginx with our configuration in front of a web node: tokens come through one by one, and a client's leaving too."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ops.child_process import spawn
from ops.local_service import LocalService
from ops.ports import free_port
from tests.acceptance.native import samples, script, until, value
from tests.promql import ROOT

CONFIGURATION = ROOT / "ops/nginx/tgq.conf"


@pytest.fixture(scope="module")
def proxy(scripted_service: LocalService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed")
    folder, port = tmp_path_factory.mktemp("nginx"), free_port("127.0.0.1")
    text = CONFIGURATION.read_text().replace("server 127.0.0.1:3000", f"server {scripted_service.url[7:]}")
    (folder / "tgq.conf").write_text(text.replace("listen 8080;", f"listen 127.0.0.1:{port};"))
    main = folder / "nginx.conf"
    paths = " ".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main.write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {paths} include {folder}/tgq.conf; }}\n"
    )
    with (folder / "log").open("wb") as log:
        process = spawn([program, "-c", str(main), "-p", str(folder)], stdout=log, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_up(url, folder / "log")
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _wait_until_up(url: str, log: Path) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def test_tokens_come_through_as_they_are_made(proxy: str) -> None:
    body = {"inputs": script("word ", repeat=500, step_ms=300), "parameters": {"max_new_tokens": 500}}
    with httpx.stream("POST", f"{proxy}/generate_stream", json=body, timeout=60) as answer:
        assert answer.status_code == 200
        first = next(answer.iter_raw())
    # A buffer of nginx holds 4 KiB or more: two dozen tokens, which take seven seconds.
    assert 1 <= first.count(b"\ndata:") <= 12


def test_the_node_hears_of_clients_that_left(proxy: str, scripted_service: LocalService) -> None:
    def left() -> float:
        text = httpx.get(f"{scripted_service.url}/metrics", timeout=30).text
        return sum(float(number) for number in re.findall(r"^tgq_cancelled_total\{.*\} (\S+)$", text, re.MULTILINE))

    until(lambda: value(samples(scripted_service.url), "tgq_requests_in_flight") == 0, "the end of earlier requests")
    before = left()
    body = {"inputs": script("word ", repeat=500, step_ms=100), "parameters": {"max_new_tokens": 500}}
    with httpx.stream("POST", f"{proxy}/generate_stream", json=body, timeout=60) as answer:
        next(answer.iter_lines())
    deadline = time.monotonic() + 20
    while left() <= before:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_metrics_stay_inside(proxy: str) -> None:
    assert httpx.get(f"{proxy}/metrics", timeout=10).status_code == 404
