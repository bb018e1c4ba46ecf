"""A submitter and real worker processes, for tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from common.celery_message import celery_message
from common.client.dispatch import SUBMIT
from common.keys import Keys
from common.parameters import GenerationParameters
from common.queue_depth import queue_depth_sync
from common.registry import live_workers_sync
from common.settings import Settings
from common.wire import (
    Cancel,
    Cancelled,
    Control,
    Failed,
    Frame,
    Job,
    JobClass,
    Tokens,
    WorkerRecord,
    decode_step_frames,
    encode_msgpack,
)

MODEL = "stand-in"
REPOSITORY = Path(__file__).parents[3]


def until(condition: Callable[[], Any], timeout: float = 30.0, what: str = "") -> Any:
    """Poll until the condition holds and return its value; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"not within {timeout} s: {what or condition}"
        time.sleep(0.02)


class Submitter:
    """Stands in for a web process: sends jobs, collects the frames of its channel."""

    def __init__(self, url: str, name: str = "test") -> None:
        self.client = redis.Redis.from_url(url, socket_timeout=5)
        self.keys = Keys()
        self.channel = self.keys.reply(name)
        self.frames: dict[tuple[str, int], list[Frame]] = defaultdict(list)
        self.messages = 0
        self._url = url
        self._stopping = threading.Event()
        self._subscribed = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        assert self._subscribed.wait(30)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(5)
        self.client.close()

    def job(self, request: str, tokens: int = 3, *, replies: bool = True, **fields: Any) -> Job:
        faults = fields.pop("faults", [])
        fields = {"submitted_at": time.time(), "prompt_ids": [1, 2], "model": MODEL, **fields}
        parameters = GenerationParameters(max_new_tokens=tokens, seed=0, stop=faults)
        return Job(id=request, parameters=parameters, reply_to=self.channel if replies else None, **fields)

    def submit(self, request: str, tokens: int = 3, **fields: Any) -> Job:
        job = self.job(request, tokens, **fields)
        self.send(job)
        return job

    def send(self, job: Job) -> None:
        queue = self.queue(job.job_class)
        self.client.eval(SUBMIT, 1, queue, str(10**6), celery_message(job, queue))

    def queue(self, job_class: JobClass = "interactive") -> str:
        return self.keys.queue(MODEL, job_class)

    def waiting(self, job_class: JobClass = "interactive") -> int:
        return queue_depth_sync(self.client, self.queue(job_class)).jobs

    def control(self, message: Control, worker: str | None = None) -> None:
        """Tell a worker, or all of them; a cancel is also written down."""
        if isinstance(message, Cancel):
            self.client.set(self.keys.cancelled(message.request), "1", ex=60)
        self.tell(message, worker)

    def tell(self, message: Control, worker: str | None = None) -> None:
        channel = self.keys.control_of(worker) if worker else self.keys.control
        self.client.publish(channel, encode_msgpack(message))

    def text(self, request: str, attempt: int = 1) -> str:
        return "".join(
            token.text
            for frame in self.frames[request, attempt]
            if isinstance(frame.body, Tokens)
            for token in frame.body.tokens
        )

    def ended(self, request: str, attempt: int = 1) -> Frame | None:
        """The last frame of an attempt that is over."""
        frames = self.frames[request, attempt]
        if frames and (
            isinstance(frames[-1].body, Failed | Cancelled)
            or (isinstance(frames[-1].body, Tokens) and frames[-1].body.finish is not None)
        ):
            return frames[-1]
        return None

    def wait(self, request: str, attempt: int = 1, timeout: float = 30.0) -> Frame:
        frame: Frame = until(lambda: self.ended(request, attempt), timeout, f"the end of {request}")
        return frame

    def workers(self, dead_after: float = 10.0) -> list[WorkerRecord]:
        return live_workers_sync(self.client, self.keys, dead_after)

    def _listen(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(redis.RedisError):
                client = redis.Redis.from_url(self._url, socket_timeout=5)
                with client, client.pubsub() as subscription:  # type: ignore[no-untyped-call]
                    subscription.subscribe(self.channel)
                    while not self._stopping.is_set():
                        message = subscription.get_message(timeout=0.2)
                        if message is not None and message["type"] == "subscribe":
                            self._subscribed.set()
                        elif message is not None:
                            self.messages += 1
                            for frame in decode_step_frames(message["data"]).frames:
                                self.frames[frame.request, frame.attempt].append(frame)
            self._stopping.wait(0.05)


class WorkerProcess:
    """A real worker in a process of its own, with the stand-in engine."""

    def __init__(self, url: str, directory: Path, settings: dict[str, Any] | None = None, **stand_in: Any) -> None:
        self.log = directory / "engine.log"
        self.output = directory / f"worker-{time.monotonic_ns()}.log"
        fields = {
            "model_id": MODEL,
            "redis_url": url,
            "engine_target": "tests.integration.workers.stand_in_engine:run",
            "heartbeat_seconds": 0.2,
            "worker_dead_after": 2.0,
            "graceful_termination_timeout": 5.0,
            **(settings or {}),
        }
        environment = {
            **os.environ,
            **{Settings.variable(name): str(value) for name, value in fields.items()},
            **{f"STAND_IN_{name.upper()}": str(value) for name, value in stand_in.items()},
            "STAND_IN_LOG": str(self.log),
            "PYTHONPATH": str(REPOSITORY),
        }
        code = "import sys; from common.logs import configure_logging; from common.settings import Settings; "
        code += "from workers.worker import run_worker; configure_logging(Settings()); sys.exit(run_worker(Settings()))"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], cwd=REPOSITORY, env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def record(self, submitter: Submitter) -> WorkerRecord | None:
        return next((record for record in submitter.workers() if record.pid == self.pid), None)

    def ready(self, submitter: Submitter, timeout: float = 60.0) -> WorkerRecord:
        def look() -> WorkerRecord | None:
            assert self.process.poll() is None, self.output.read_text()
            record = self.record(submitter)
            return record if record is not None and record.state == "ready" else None

        record: WorkerRecord = until(look, timeout, "the worker is ready")
        return record

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def freeze_engine(self, record: WorkerRecord) -> None:
        assert record.engine_pid is not None
        os.kill(record.engine_pid, signal.SIGSTOP)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def wait(self, timeout: float = 60.0) -> int:
        return self.process.wait(timeout)

    def noted(self, word: str) -> list[list[str]]:
        """Lines of the engine's log that start with `word`, as words."""
        if not self.log.exists():
            return []
        whole, _, _ = self.log.read_text().rpartition("\n")  # the last line may be half written
        lines = [line.split() for line in whole.splitlines()]
        return [line for line in lines if line and line[0] == word]


@contextlib.contextmanager
def worker(
    url: str, directory: Path, settings: dict[str, Any] | None = None, **stand_in: Any
) -> Iterator[WorkerProcess]:
    process = WorkerProcess(url, directory, settings, **stand_in)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.kill()
