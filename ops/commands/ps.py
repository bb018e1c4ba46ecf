"""`tgq ps`: the workers that are alive."""

from __future__ import annotations

import json
import sys

import redis

from common.redis_clients import sync_redis
from ops.columns import print_columns
from ops.configuration import Configuration
from ops.fleet import Fleet, no_answer, shown_state

_FIELDS = ("id", "pid", "host", "model", "state", "running", "waiting")


def run(configuration: Configuration, *, as_json: bool) -> int:
    """Print the workers as a table or as a JSON list; returns the exit status (1: Redis is away)."""
    settings = configuration.settings
    try:
        with sync_redis(settings) as client:
            workers = Fleet(client, settings).workers()
    except (redis.RedisError, ValueError) as error:
        print(f"tgq: {no_answer(settings, error)}", file=sys.stderr)
        return 1
    rows = [{name: getattr(worker, name) for name in _FIELDS} for worker in workers]
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    for row, worker in zip(rows, workers, strict=True):
        row["state"] = shown_state(worker)
    print_columns([tuple(name.upper() for name in _FIELDS), *([str(row[name]) for name in _FIELDS] for row in rows)])
    return 0
