"""The way of a token: pipe, publisher, Redis, relay and web, beside a server that only writes the same bytes."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx

from ops.bench.load import BadAnswer, StreamResult, run_streams
from ops.child_process import spawn
from ops.local_service import LocalService
from ops.ports import free_port

STREAMS = 64
TOKENS = 200
BODY: dict[str, object] = {"inputs": "ready", "parameters": {"max_new_tokens": TOKENS}}


@dataclass(frozen=True, slots=True)
class RelayFigures:
    """Tokens per second, round by round, run in turn."""

    service: list[float]
    bare: list[float]

    @property
    def ratio(self) -> float:
        """Median over the rounds of service / bare."""
        return median(ours / theirs for ours, theirs in zip(self.service, self.bare, strict=True))


def measure(directory: Path, *, rounds: int = 7) -> RelayFigures:
    """Measure both servers in turn, after one round of each that does not count."""
    settings = {
        "MODEL_ID": "scripted",
        "TGQ_ENGINE_TARGET": "ops.bench.ready_made:run",
        "MAX_BATCH_SIZE": str(STREAMS),
        "LOG_LEVEL": "error",
    }
    with LocalService(settings, directory=directory / "relay") as service:
        frames = directory / "frames"
        frames.write_bytes(_run(service.url)[0].body)
        with BareServer(frames) as bare:
            _run(bare.url)
            ours, theirs = [], []
            for _ in range(rounds):
                ours.append(_rate(_run(service.url)))
                theirs.append(_rate(_run(bare.url)))
    return RelayFigures(ours, theirs)


def _run(url: str) -> list[StreamResult]:
    results = run_streams(f"{url}/generate_stream", [BODY] * STREAMS)
    for result in results:
        if len(result.events) != TOKENS:
            raise BadAnswer(f"a stream had {len(result.events)} events instead of {TOKENS}")
    return results


def _rate(results: list[StreamResult]) -> float:
    return STREAMS * TOKENS / max(result.finished for result in results)


class BareServer:
    """One gunicorn process of `bare_server`, started as the service starts its own."""

    def __init__(self, frames: Path) -> None:
        self._frames = frames
        port = free_port("127.0.0.1")
        self.url = f"http://127.0.0.1:{port}"
        self._command = [
            *(sys.executable, "-m", "gunicorn", "ops.bench.bare_server:create_app()"),
            *("--worker-class", "asgi", "--asgi-loop", "uvloop", "--workers", "1"),
            *("--bind", f"127.0.0.1:{port}", "--log-level", "error"),
        ]

    def __enter__(self) -> BareServer:
        self._process = spawn(self._command, environment={**os.environ, "BARE_FRAMES": str(self._frames)})
        deadline = time.monotonic() + 30
        while True:
            try:
                httpx.get(self.url, timeout=1)
                return self
            except httpx.HTTPError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self._process.kill()
                    raise
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=10)
