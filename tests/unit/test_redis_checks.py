"""What is refused and what is warned of, from what a server says of itself."""

from __future__ import annotations

import re
from typing import Any

import pytest

from common.redis_checks import ServerFacts, refusals, warnings

GOOD: dict[str, Any] = {
    "redis_version": "7.2.4",
    "cluster_enabled": 0,
    "maxmemory": 0,
    "maxmemory_policy": "noeviction",
    "role": "master",
    "aof_enabled": 0,
}
CONFIG = {
    "save": "3600 1",
    "client-output-buffer-limit": "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
}


def facts(config: dict[str, str] | None = None, **info: Any) -> ServerFacts:
    return ServerFacts(GOOD | info, CONFIG if config is None else config)


def test_a_server_as_it_comes_is_fine() -> None:
    assert refusals(facts()) == []
    assert warnings(facts(), durable=True) == []


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"cluster_enabled": 1}, "cluster mode"),
        ({"redis_version": "6.2.14"}, "6.2.14 is too old"),
        ({"maxmemory": 1000, "maxmemory_policy": "allkeys-lru"}, "allkeys-lru.*noeviction"),
        ({"maxmemory": 1000, "maxmemory_policy": "volatile-ttl"}, "volatile-ttl.*noeviction"),
    ],
)
def test_refuses_what_loses_requests(info: dict[str, Any], said: str) -> None:
    (reason,) = refusals(facts(**info))
    assert re.search(said, reason)


def test_eviction_without_a_limit_is_only_warned_of() -> None:
    seen = facts(maxmemory_policy="allkeys-lru")
    assert refusals(seen) == []
    assert "allkeys-lru" in warnings(seen, durable=False)[0]


@pytest.mark.parametrize(
    ("config", "info", "durable", "warned"),
    [
        ({"save": ""}, {}, True, True),
        ({"save": ""}, {}, False, False),
        ({"save": ""}, {"aof_enabled": 1}, True, False),
        ({"save": "60 1"}, {}, True, False),
        ({}, {}, True, False),
    ],
)
def test_persistence_is_wanted_for_batches(
    config: dict[str, str], info: dict[str, Any], *, durable: bool, warned: bool
) -> None:
    assert bool(warnings(facts(config, **info), durable=durable)) == warned


@pytest.mark.parametrize(
    ("limits", "warned"),
    [
        ("pubsub 33554432 8388608 60", False),
        ("pubsub 0 0 0", False),
        ("pubsub 1048576 524288 10", True),
        ("normal 0 0 0", False),
    ],
)
def test_subscribers_want_a_buffer(limits: str, *, warned: bool) -> None:
    found = warnings(facts({"client-output-buffer-limit": limits}), durable=False)
    assert any("client-output-buffer-limit pubsub to 32mb" in text for text in found) == warned


def test_says_so_when_it_may_not_look() -> None:
    unseen = ServerFacts({}, {})
    assert refusals(unseen) == []
    assert "cannot be read" in warnings(unseen, durable=True)[0]


def test_a_replica_takes_no_requests() -> None:
    assert "replica" in warnings(facts(role="slave"), durable=False)[0]
