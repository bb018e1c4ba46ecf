"""What a worker and its engine process say to each other over their pipe; in msgpack, as what crosses Redis (`common.wire`)."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from common.wire import EngineStats, FrameBody, Job, ModelCard

# -- worker -> engine


class AddJobs(Struct, frozen=True, tag="add"):
    jobs: list[Job]


class CancelJobs(Struct, frozen=True, tag="cancel"):
    requests: list[str]


class Shutdown(Struct, frozen=True, tag="shutdown"):
    """Leave after the step that is running."""


ToEngine = AddJobs | CancelJobs | Shutdown


# -- engine -> worker


class LoadProgress(Struct, frozen=True, tag="progress"):
    """The engine is still loading."""

    stage: str
    fraction: float
    """0 to 1 within the whole load."""
    detail: str = ""
    """How much of the stage: `1.2 of 4.9 GB`."""


class Ready(Struct, frozen=True, tag="ready"):
    card: ModelCard


class JobEvent(Struct, frozen=True, gc=False, array_like=True):
    """One frame before its worker has numbered it."""

    request: str
    attempt: int
    body: FrameBody


class EngineOutput(Struct, frozen=True, gc=False, tag="output"):
    """What one engine step produced."""

    events: list[JobEvent]
    stats: EngineStats | None = None
    """Sent at most a few times a second."""


class EngineFailure(Struct, frozen=True, tag="failure"):
    """The engine process ends with an error, while loading or later; the last message it sends."""

    message: str


FromEngine = LoadProgress | Ready | EngineOutput | EngineFailure


decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
