"""An engine process that computes nothing: every step it has one ready-made token for each running job.

What is left is the way of a token: pipe, publisher, Redis, relay, web. Used through `TGQ_ENGINE_TARGET`.
"""

from __future__ import annotations

from multiprocessing.connection import Connection

from common.settings import Settings
from common.wire import Accepted, Cancelled, Finish, Job, ModelCard, Token, Tokens, encode_msgpack
from workers.engine.messages import AddJobs, CancelJobs, EngineOutput, JobEvent, Ready, Shutdown, decode_to_engine

_TOKEN = Token(2, " word", -0.25, False)


def run(connection: Connection, settings: Settings) -> None:
    """Speak the engine's side of the pipe until it is closed."""
    card = ModelCard(
        model_id=settings.model_id,
        dtype="torch.float32",
        device_type="cpu",
        max_total_tokens=8192,
        max_batch_total_tokens=1 << 20,
        max_batch_size=settings.max_batch_size or 256,
    )
    connection.send_bytes(encode_msgpack(Ready(card)))
    running: dict[str, tuple[Job, int]] = {}
    try:
        while True:
            events: list[JobEvent] = []
            while connection.poll(0 if running or events else None):
                message = decode_to_engine(connection.recv_bytes())
                match message:
                    case AddJobs(jobs):
                        for job in jobs:
                            running[job.id] = (job, 0)
                            events.append(JobEvent(job.id, job.attempt, Accepted("")))
                    case CancelJobs(requests):
                        found = [running.pop(request)[0] for request in requests if request in running]
                        events.extend(JobEvent(job.id, job.attempt, Cancelled()) for job in found)
                    case Shutdown():
                        return
            for request, (job, done) in list(running.items()):
                total = job.parameters.max_new_tokens
                finish = Finish("length", total, 0.001) if done + 1 == total else None
                events.append(JobEvent(request, job.attempt, Tokens(done, [_TOKEN], finish)))
                if finish:
                    del running[request]
                else:
                    running[request] = (job, done + 1)
            connection.send_bytes(encode_msgpack(EngineOutput(events)))
    except (EOFError, BrokenPipeError):
        return
