"""`tgq batch-worker`: a runner of batches; any number may run."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

import redis
import uvloop

from common.logs import configure_logging
from common.model_files import ModelNotFound
from common.redis_checks import RedisUnfit, check_redis
from common.redis_clients import sync_redis
from common.settings import Settings
from ops.configuration import Configuration

if TYPE_CHECKING:
    from workers.batch.runner import BatchRunner

log = logging.getLogger(__name__)


def run(configuration: Configuration, *, forgetful_redis: bool) -> int:
    """Run until told to stop; returns the exit status. SIGTERM leaves what is under way to others, at once.

    Args:
        forgetful_redis: `tgq serve` has said that its Redis keeps nothing over a restart.
    """
    from workers.batch.runner import BatchRunner

    # Where there are few cores, those of web nodes and workers come first.
    os.nice(5)
    settings = configuration.settings
    configure_logging(settings)
    try:
        _look_at_redis(settings, durable=not forgetful_redis)
        runner = BatchRunner(settings)
    except (RedisUnfit, ModelNotFound, ValueError) as error:
        print(f"tgq: {error}", file=sys.stderr)
        return 1
    uvloop.run(_run(runner))
    return 0


async def _run(runner: BatchRunner) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for told in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(told, stopping.set)
    await runner.run(stopping)


def _look_at_redis(settings: Settings, *, durable: bool) -> None:
    """Warn of settings that may cost batches; raises `RedisUnfit` for those that will."""
    try:
        with sync_redis(settings) as client:
            for advice in check_redis(client, durable=durable):
                log.warning("Redis: %s", advice)
    except redis.RedisError as error:
        # It may come later.
        log.warning("Redis cannot be reached yet: %s", type(error).__name__)
