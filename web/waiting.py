"""What waits for a worker, as this web node sees it now."""

from __future__ import annotations

from typing import get_args

from msgspec import Struct

from common.queue_depth import oldest_age, queue_depth
from common.wire import JobClass
from web.services import Services


class Waiting(Struct):
    """Of one model, in its queues of all classes."""

    jobs: int = 0
    oldest_seconds: float = 0.0
    """Age of the job that is next; 0 when none waits."""


async def waiting(services: Services) -> dict[str, Waiting]:
    """By model, all whose queues may hold jobs.

    Raises:
        redis.exceptions.RedisError: Redis is away or slow.
    """
    found: dict[str, Waiting] = {}
    for model in await services.models.queued():
        of_model = found[model] = Waiting()
        for job_class in get_args(JobClass):
            queue = services.keys.queue(model, job_class)
            of_model.jobs += (await queue_depth(services.redis, queue)).jobs
            of_model.oldest_seconds = max(of_model.oldest_seconds, await oldest_age(services.redis, queue))
    return found
