"""An engine without a model, for tests of the worker: one token per job and step, and faults on demand.

What it does is set by environment variables (`STAND_IN_...`) and, per job, by words in `parameters.stop`:
`kill_at:N` ends its own process before token N, `hang_at:N` finishes no further step, `fail_at:N` fails the job. What it
did is appended to the file `STAND_IN_LOG`, a line per event.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

from common.settings import Settings
from common.wire import Accepted, Cancelled, EngineStats, Failed, Finish, Job, ModelCard, Token, Tokens, encode_msgpack
from workers.engine.messages import (
    AddJobs,
    CancelJobs,
    EngineOutput,
    JobEvent,
    LoadProgress,
    Ready,
    Shutdown,
    decode_to_engine,
)


def number(name: str, default: float) -> float:
    return float(os.environ.get(f"STAND_IN_{name}", default))


def note(*words: object) -> None:
    if path := os.environ.get("STAND_IN_LOG"):
        with Path(path).open("a") as log:
            log.write(" ".join(map(str, words)) + "\n")


def fault(job: Job, name: str) -> int | None:
    for word in job.parameters.stop:
        if word.startswith(name + ":"):
            return int(word.partition(":")[2])
    return None


def run(connection: Connection, settings: Settings) -> None:
    if os.environ.get("STAND_IN_LOAD_ERROR"):
        raise RuntimeError(os.environ["STAND_IN_LOAD_ERROR"])
    if Path(os.environ.get("STAND_IN_BROKEN_IF", "")).is_file():
        raise RuntimeError("CUDA error: unspecified launch failure")
    slots, tokens = int(number("SLOTS", 8)), int(number("TOKENS", 8000))
    for step in (1, 2):
        connection.send_bytes(encode_msgpack(LoadProgress("weights", step / 2, f"{step} of 2 parts")))
        time.sleep(number("LOAD_SECONDS", 0.0) / 2)
    card = ModelCard(
        model_id=settings.model_id,
        dtype="torch.float32",
        device_type="scripted",
        max_total_tokens=tokens,
        max_batch_total_tokens=tokens,
        max_batch_size=slots,
    )
    connection.send_bytes(encode_msgpack(Ready(card)))
    note("ready", os.getpid())
    jobs: dict[str, Job] = {}
    emitted: dict[str, int] = {}
    generated = 0
    while True:
        events: list[JobEvent] = []
        while connection.poll(0 if jobs or events else 0.5):
            match decode_to_engine(connection.recv_bytes()):
                case AddJobs(jobs=new):
                    for job in new:
                        jobs[job.id], emitted[job.id] = job, 0
                        note("start", job.id, job.attempt, os.getpid())
                        events.append(JobEvent(job.id, job.attempt, Accepted("")))
                case CancelJobs(requests=requests):
                    for request in requests:
                        if gone := jobs.pop(request, None):
                            note("cancelled", request)
                            events.append(JobEvent(request, gone.attempt, Cancelled()))
                case Shutdown():
                    return
        note("held", len(jobs), sum(job.cost for job in jobs.values()))
        for job in list(jobs.values()):
            index = emitted[job.id]
            if fault(job, "kill_at") == index:
                if events:
                    connection.send_bytes(encode_msgpack(EngineOutput(events)))
                os.kill(os.getpid(), signal.SIGKILL)
            if fault(job, "hang_at") == index:
                if events:
                    connection.send_bytes(encode_msgpack(EngineOutput(events)))
                note("hang", job.id)
                time.sleep(3600)
            if fault(job, "fail_at") == index:
                events.append(JobEvent(job.id, job.attempt, Failed("generation", "scripted fault")))
                del jobs[job.id]
                continue
            last = index + 1 == job.parameters.max_new_tokens
            finish = Finish("length", index + 1, 0.0) if last else None
            token = Token(index, f"{index} ", -1.0, special=False)
            events.append(JobEvent(job.id, job.attempt, Tokens(index, [token], finish)))
            emitted[job.id] = index + 1
            generated += 1
            if last:
                note("end", job.id, job.attempt)
                del jobs[job.id]
        if events:
            stats = EngineStats(running=len(jobs), generated_tokens=generated)
            connection.send_bytes(encode_msgpack(EngineOutput(events, stats)))
        time.sleep(number("STEP_SECONDS", 0.005))
