"""Redis connections with every time limit set on purpose.

redis-py's defaults retry a frozen server for 25 s, and kombu's never give up; a command here fails within
`redis_timeout` and is never sent twice, so that a caller always knows what it may have done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from common import redis_connections as connections
from common.redis_url import RedisAddress
from common.settings import Settings

_NO_NOTICES = MaintNotificationsConfig(enabled=False)
"""While redis-py 8 waits for a managed server's maintenance notices, it takes connections out of its pool unseen: after a
restart of the server the first command on each of them fails."""
HEALTH_CHECK_SECONDS = 25


def async_redis(settings: Settings, *, max_connections: int = 16) -> redis.asyncio.Redis:
    """A client for commands on an event loop; raises `redis.RedisError` within the timeouts.

    Commands beyond `max_connections` at once wait for a free connection, `redis_timeout` at most.
    """
    pool = redis.asyncio.BlockingConnectionPool(
        max_connections=max_connections,
        timeout=settings.redis_timeout,
        health_check_interval=HEALTH_CHECK_SECONDS,
        client_name="tgq",
        **_async_options(settings),
    )
    return redis.asyncio.Redis.from_pool(pool)


def subscriber_pool(settings: Settings) -> redis.asyncio.ConnectionPool:
    """Makes connections for subscribers on an event loop (`make_connection()`); their owner watches their health.

    RESP2 on purpose: with RESP3, redis-py formats every published message for its debug log, answers included.
    """
    return redis.asyncio.ConnectionPool(
        health_check_interval=0, protocol=2, client_name="tgq-subscriber", **_async_options(settings)
    )


def sync_redis(settings: Settings) -> redis.Redis:
    """A client for one thread; raises `redis.RedisError` within the timeouts."""
    return redis.Redis.from_pool(sync_pool(settings))


def sync_pool(
    settings: Settings,
    *,
    patience: float = 0.0,
    client_name: str = "tgq",
    subclass: Callable[[type[Any]], type[Any]] = lambda base: base,
) -> redis.ConnectionPool:
    """The connections of synchronous clients.

    Args:
        patience: seconds that a command may wait on the server on purpose, beyond `redis_timeout`.
        subclass: makes the connections' class from the one they would have.
    """
    address = RedisAddress.parse(settings.broker_url)
    options = _options(settings, address)
    if address.master_name is not None:
        sentinels = connections.Sentinels(
            address, _sentinel_options(settings, address) | {"retry": redis.retry.Retry(NoBackoff(), 0)}
        )
        options["locate"] = sentinels.locate
    if address.path is not None:
        base: type[Any] = connections.SocketConnection
    else:
        base = connections.Connection if address.tls is None else connections.TlsConnection
    options["socket_timeout"] += patience
    return redis.ConnectionPool(
        connection_class=subclass(base),
        health_check_interval=HEALTH_CHECK_SECONDS,
        retry=redis.retry.Retry(NoBackoff(), 0),
        client_name=client_name,
        **options,
    )


def _async_options(settings: Settings) -> dict[str, Any]:
    address = RedisAddress.parse(settings.broker_url)
    options = _options(settings, address)
    retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
    if address.master_name is not None:
        sentinels = connections.Sentinels(address, _sentinel_options(settings, address) | {"retry": retry})
        options["locate"] = sentinels.locate_async
    if address.path is not None:
        options["connection_class"] = connections.AsyncSocketConnection
    else:
        plain = address.tls is None
        options["connection_class"] = connections.AsyncConnection if plain else connections.AsyncTlsConnection
    return options | {"retry": retry, "doubt": connections.Doubt()}


def _options(settings: Settings, address: RedisAddress) -> dict[str, Any]:
    options: dict[str, Any] = {
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "socket_timeout": settings.redis_timeout,
        "socket_connect_timeout": settings.redis_connect_timeout,
        "maint_notifications_config": _NO_NOTICES,
    }
    if address.path is not None:
        return options | {"path": address.path}
    host, port = address.hosts[0]
    return options | {"host": host, "port": port, "socket_keepalive": True} | dict(address.tls or {})


def _sentinel_options(settings: Settings, address: RedisAddress) -> dict[str, Any]:
    """For the Sentinels: an answer takes them no longer than a connection."""
    return {
        "username": address.sentinel_username,
        "password": address.sentinel_password,
        "socket_timeout": settings.redis_connect_timeout,
        "socket_connect_timeout": settings.redis_connect_timeout,
        "maint_notifications_config": _NO_NOTICES,
        **({"ssl": True, **address.tls} if address.tls is not None else {}),
    }
