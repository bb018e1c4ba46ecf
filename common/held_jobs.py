"""What a worker tells operators of the jobs it holds: the answer to `common.wire.ListJobs`."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from common.wire import JobClass


class HeldJob(Struct, frozen=True, kw_only=True):
    """A job that a worker holds, as operators see it: nothing of what it says."""

    request: str
    attempt: int
    job_class: JobClass
    tenant: str
    adapter: str | None
    accepted: bool
    """The engine has it."""
    prompt_tokens: int
    generated_tokens: int
    """Of all its sequences, earlier attempts' included."""
    max_new_tokens: int
    """For each of its sequences."""
    submitted_at: float
    """Unix seconds."""


class HeldJobs(Struct, frozen=True):
    """A worker's answer to `ListJobs`."""

    worker: str
    model: str
    jobs: list[HeldJob]


decode_held_jobs = msgspec.msgpack.Decoder(HeldJobs).decode
