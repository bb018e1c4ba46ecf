"""Redis connections with every time limit set on purpose.

redis-py's defaults retry a frozen server for 25 s, and kombu's never give up; a command here fails within
`redis_timeout` and is never sent twice, so that a caller always knows what it may have done.
"""

from __future__ import annotations

import redis
import redis.asyncio
import redis.asyncio.retry
from redis.backoff import NoBackoff

from common.settings import Settings


def async_redis(settings: Settings, *, max_connections: int = 16) -> redis.asyncio.Redis:
    """A client for commands on an event loop; raises `redis.RedisError` within the timeouts.

    Commands beyond `max_connections` at once wait for a free connection, `redis_timeout` at most.
    """
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        settings.broker_url,
        timeout=settings.redis_timeout,
        socket_timeout=settings.redis_timeout,
        socket_connect_timeout=settings.redis_connect_timeout,
        socket_keepalive=True,
        health_check_interval=25,
        retry=redis.asyncio.retry.Retry(NoBackoff(), 0),
        max_connections=max_connections,
        client_name="tgq",
    )
    return redis.asyncio.Redis.from_pool(pool)


def subscriber_pool(settings: Settings) -> redis.asyncio.ConnectionPool:
    """Makes connections for subscribers on an event loop (`make_connection()`); their owner watches their health.

    RESP2 on purpose: with RESP3, redis-py formats every published message for its debug log, answers included.
    """
    return redis.asyncio.ConnectionPool.from_url(
        settings.broker_url,
        socket_timeout=settings.redis_timeout,
        socket_connect_timeout=settings.redis_connect_timeout,
        socket_keepalive=True,
        health_check_interval=0,
        retry=redis.asyncio.retry.Retry(NoBackoff(), 0),
        protocol=2,
        client_name="tgq-subscriber",
    )


def sync_redis(settings: Settings) -> redis.Redis:
    """A client for one thread; raises `redis.RedisError` within the timeouts."""
    return redis.Redis.from_url(
        settings.broker_url,
        socket_timeout=settings.redis_timeout,
        socket_connect_timeout=settings.redis_connect_timeout,
        socket_keepalive=True,
        health_check_interval=25,
        retry=redis.retry.Retry(NoBackoff(), 0),
        client_name="tgq",
    )
