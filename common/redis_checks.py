"""Whether a Redis server may be trusted with the queue, looked at once when a process starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import ResponseError

OLDEST = (7, 0)
"""Scripts that may run when memory is full came with Redis 7; every Valkey has them."""
PUBSUB_BUFFER = 32 * 2**20
"""Bytes that may wait for a web process that stands still; Redis' own default. Beyond its limit the server cuts it off."""


class RedisUnfit(Exception):
    """The server would lose or mix up requests; the message says what to change."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself."""

    info: Mapping[str, Any]
    config: Mapping[str, str]
    """Settings by name; empty when this user may not read them."""


def check_redis(client: redis.Redis, *, durable: bool = False) -> list[str]:
    """Look at the server; returns warnings, whole sentences for its operator.

    Args:
        durable: requests are accepted that must outlive a restart of the server (batches).

    Raises:
        RedisUnfit: the service must not start with it.
        redis.RedisError: the server cannot be reached.
    """
    facts = read_facts(client)
    if reasons := refusals(facts):
        raise RedisUnfit(" ".join(reasons))
    return warnings(facts, durable=durable)


def read_facts(client: redis.Redis) -> ServerFacts:
    """Ask the server.

    Raises:
        redis.RedisError: it cannot be reached.
    """
    try:
        info: dict[str, Any] = client.info()
    except ResponseError:  # Not allowed to.
        info = {}
    config: dict[str, str] = {}
    for name in ("save", "client-output-buffer-limit"):
        try:
            config.update({str(key): str(value) for key, value in client.config_get(name).items()})
        except ResponseError:
            break  # Not allowed to, or a managed server that has no CONFIG.
    return ServerFacts(info, config)


def refusals(facts: ServerFacts) -> list[str]:
    """Why nothing should be entrusted to this server; empty when it will do."""
    info, found = facts.info, []
    if info.get("cluster_enabled"):
        found.append(
            "Redis runs in cluster mode, where the keys of one script lie on different nodes and Celery's broker does not "
            "work: use one server, or Sentinel for failover."
        )
    version = str(info.get("redis_version", ""))
    if version and _numbers(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        found.append(f"Redis {version} is too old: {oldest} or newer, or Valkey, is needed.")
    if _evicts(info) and int(info.get("maxmemory", 0)):
        found.append(
            f"Redis drops keys when its memory is full (maxmemory-policy {info['maxmemory_policy']}), queued requests "
            "among them: set maxmemory-policy to noeviction."
        )
    return found


def warnings(facts: ServerFacts, *, durable: bool) -> list[str]:
    """What may cost requests one day."""
    info, found = facts.info, []
    if "maxmemory_policy" not in info:
        found.append(
            "It cannot be read whether Redis drops keys when its memory is full: maxmemory-policy must be noeviction."
        )
    elif _evicts(info) and not int(info.get("maxmemory", 0)):
        found.append(
            f"maxmemory-policy is {info['maxmemory_policy']}: harmless without a maxmemory, but queued requests are dropped "
            "once there is one. Set noeviction."
        )
    if info.get("role") == "slave":
        found.append("REDIS_URL names a replica, which takes no requests: name the primary, or use sentinel://.")
    if durable and not info.get("aof_enabled") and not facts.config.get("save", "unknown"):
        found.append(
            "Batches are forgotten when the server restarts: set appendonly yes, or TGQ_REDIS_DATA=folder where `tgq serve` "
            "starts it."
        )
    if (limit := _pubsub_limit(facts.config)) is not None and limit < PUBSUB_BUFFER:
        found.append(
            f"A web process that is {limit} bytes behind is cut off, which interrupts its streams: set "
            f"client-output-buffer-limit pubsub to {PUBSUB_BUFFER // 2**20}mb or more."
        )
    return found


def _evicts(info: Mapping[str, Any]) -> bool:
    return str(info.get("maxmemory_policy", "noeviction")) != "noeviction"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _pubsub_limit(config: Mapping[str, str]) -> int | None:
    """Bytes at which a subscriber is cut off at once; None for no limit, or when it cannot be read."""
    words = config.get("client-output-buffer-limit", "").split()
    if "pubsub" not in words:
        return None
    return int(words[words.index("pubsub") + 1]) or None
