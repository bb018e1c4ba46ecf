"""What the playground tells of queue and workers, and what it may ask for."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from common.api_keys import ApiKey
from web.services import Services
from web.waiting import Waiting, waiting


class ModelStatus(Struct):
    """One model: those who wait for it and those who serve it."""

    name: str
    queued: int
    """Requests that no worker has taken."""
    oldest_seconds: float
    """How long the next of them has waited."""
    running: int
    """Requests at its workers."""
    workers: dict[str, int]
    """Live workers by state."""
    progress: float
    """Of loading it, 0 to 1, at the worker that is furthest; 1 when one has it loaded."""


class PlaygroundStatus(Struct):
    models: list[ModelStatus]
    """The default model, which comes first, and whatever else live workers serve."""
    chat: bool
    """Whether the default model has a chat template."""
    max_top_logprobs: int
    """Most alternatives for each token."""


async def playground_status(services: Services, key: ApiKey | None) -> PlaygroundStatus:
    """
    Args:
        key: the caller's. Models that it is not for are left out.

    Raises:
        redis.exceptions.RedisError: Redis is away or slow.
    """
    queues, default = await waiting(services), services.models.default
    names = sorted(
        (name for name in queues if key is None or key.may_use(name)), key=lambda name: (name != default.id, name)
    )
    models = [await _model_status(services, name, queues[name]) for name in names]
    return PlaygroundStatus(models, default.chat_template.exists, services.settings.max_top_logprobs)


async def _model_status(services: Services, name: str, queue: Waiting) -> ModelStatus:
    records = await services.workers.records(name)
    return ModelStatus(
        name=name,
        queued=queue.jobs,
        oldest_seconds=round(queue.oldest_seconds, 1),
        running=sum(record.running + record.waiting for record in records),
        workers=dict(Counter(record.state for record in records)),
        progress=max((record.progress for record in records), default=0.0),
    )
