"""What operators see and do from the command line, beside a service of two workers."""

from __future__ import annotations

import json
import os
from typing import Any
from unittest import mock

import httpx
import pytest
from typer.testing import CliRunner

from ops.cli import app
from ops.local_service import LocalService
from tests.acceptance.native import TIMEOUT, script, until

TEXT = "again and again "


@pytest.fixture
def service(two_workers: LocalService, monkeypatch: pytest.MonkeyPatch) -> LocalService:
    # They all answer, but not on a busy machine in a second.
    monkeypatch.setattr("ops.fleet.ANSWER_SECONDS", 20.0)
    return two_workers


def tgq(service: LocalService, *arguments: str, status: int = 0) -> str:
    """What a command prints; in this process, for each of its own costs a second."""
    with mock.patch.dict(os.environ, {"REDIS_URL": service.redis_url}):
        done = CliRunner().invoke(app, arguments)
    assert done.exit_code == status, done.output
    return done.stdout if status == 0 else done.stderr


def listed(service: LocalService, *arguments: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(tgq(service, *arguments, "--json"))
    return rows


def state(service: LocalService, worker: str) -> str:
    return str(next(row["state"] for row in listed(service, "ps") if row["id"] == worker))


def test_a_request_is_seen_and_cancelled(service: LocalService) -> None:
    body = {"inputs": script(TEXT, repeat=1000, step_ms=20), "parameters": {"max_new_tokens": 3000}}
    with httpx.stream("POST", f"{service.url}/generate_stream", json=body, timeout=TIMEOUT) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("id: 1")
        (job,) = until(lambda: [row for row in listed(service, "running") if row["generated_tokens"]], "its progress")
        assert job["worker"] in {row["id"] for row in listed(service, "ps")}
        assert (job["accepted"], job["attempt"], job["max_new_tokens"]) == (True, 1, 3000)
        assert TEXT.strip() not in json.dumps(job)
        assert job["request"] in tgq(service, "running")
        at_a_tab = {"REDIS_URL": service.redis_url, "_TGQ_COMPLETE": "complete_bash"}
        at_a_tab |= {"COMP_WORDS": "tgq cancel ", "COMP_CWORD": "2"}
        assert CliRunner().invoke(app, [], prog_name="tgq", env=at_a_tab).stdout.split() == [job["request"]]
        assert f"cancelled {job['request']}" in tgq(service, "cancel", job["request"][:12])
        last = [line for line in lines if line.startswith("data: ")][-1]
    assert json.loads(last.removeprefix("data: "))["error_type"] == "cancelled"
    until(lambda: not listed(service, "running"), "the end of the request")
    assert "is held by a worker" in tgq(service, "cancel", job["request"], status=1)


def test_a_drained_worker_takes_nothing_until_it_is_told_to(service: LocalService) -> None:
    first, second = (row["id"] for row in listed(service, "ps"))
    assert tgq(service, "drain", first, "--wait", "30").splitlines() == [f"draining {first}", f"drained {first}"]
    assert state(service, first) == "drained"
    for number in range(8):
        body = {"inputs": script(f"answer {number}")}
        assert httpx.post(f"{service.url}/generate", json=body, timeout=TIMEOUT).status_code == 200
    held = [{"inputs": script(TEXT, repeat=1000, step_ms=20), "parameters": {"max_new_tokens": 3000}}] * 3
    streams = [httpx.Client(timeout=TIMEOUT) for _ in held]
    try:
        opened = [
            client.send(client.build_request("POST", f"{service.url}/generate_stream", json=body), stream=True)
            for client, body in zip(streams, held, strict=True)
        ]
        lines = [stream.iter_lines() for stream in opened]  # Dropped, they would close the streams.
        assert all(next(told).startswith("id: 1") for told in lines)
        until(lambda: [row["worker"] for row in listed(service, "running")] == [second] * 3, "the streams at the other")
        # With jobs in its hands the other one is never drained while they run.
        told = tgq(service, "drain", second, "--wait", "0.5", status=3)
        assert "not drained after 0.5 s" in told
        until(lambda: state(service, second) == "draining", "its word that it drains")
    finally:
        for client in streams:
            client.close()
    tgq(service, "undrain", first, second)
    until(lambda: {row["state"] for row in listed(service, "ps")} == {"ready"}, "both to be ready")


def test_queues_and_the_fleet_are_shown(service: LocalService) -> None:
    rows = listed(service, "queue")
    assert {(row["model"], row["job_class"], row["jobs"]) for row in rows} == {
        ("scripted", "interactive", 0),
        ("scripted", "batch", 0),
    }
    shown = tgq(service, "top")  # once, off a terminal
    assert "workers" in shown
    assert "queues" in shown
    assert all(row["id"][:20] in shown for row in listed(service, "ps"))


def test_unknown_names_are_told(service: LocalService) -> None:
    assert "no worker `nobody`" in tgq(service, "drain", "nobody", status=1)
    assert "`` is the beginning or the end of 2 workers: see `tgq ps`" in tgq(service, "drain", "", status=1)
