"""`tgq queue`, `running`, `cancel`, `drain`, `undrain`: what operators see of the fleet, and tell it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import redis

from common.redis_clients import sync_redis
from ops.columns import print_columns
from ops.configuration import Configuration
from ops.fleet import Fleet, Unknown, no_answer

NOT_IN_TIME = 3


def queue(configuration: Configuration, *, as_json: bool) -> int:
    """Print what waits, by model and class."""

    def show(fleet: Fleet) -> int:
        rows = [found._asdict() for found in fleet.queues()]
        if as_json:
            return _json(rows)
        shown = [(r["model"], r["job_class"], str(r["jobs"]), str(r["tokens"]), _age(r["oldest"])) for r in rows]
        print_columns([("MODEL", "CLASS", "JOBS", "TOKENS", "OLDEST"), *shown])
        return 0

    return _with_fleet(configuration, show)


def running(configuration: Configuration, *, as_json: bool) -> int:
    """Print the requests that workers hold."""

    def show(fleet: Fleet) -> int:
        rows = [
            {"worker": held.worker, "model": held.model, **msgspec.to_builtins(job)}
            for held in fleet.held()
            for job in held.jobs
        ]
        if as_json:
            return _json(rows)
        now = time.time()
        shown = [
            (
                r["request"],
                r["worker"],
                r["job_class"],
                r["tenant"] or "-",
                "running" if r["accepted"] else "waiting",
                str(r["attempt"]),
                str(r["prompt_tokens"]),
                f"{r['generated_tokens']}/{r['max_new_tokens']}",
                _age(now - r["submitted_at"]),
            )
            for r in rows
        ]
        heads = ("REQUEST", "WORKER", "CLASS", "KEY", "STATE", "ATTEMPT", "PROMPT", "GENERATED", "AGE")
        print_columns([heads, *shown])
        return 0

    return _with_fleet(configuration, show)


def cancel(configuration: Configuration, requests: Sequence[str]) -> int:
    """Cancel requests by their jobs' ids; their callers are told."""

    def stop(fleet: Fleet) -> int:
        for name in requests:
            print(f"cancelled {fleet.cancel(name)}")
        return 0

    return _with_fleet(configuration, stop)


def drain(configuration: Configuration, names: Sequence[str], *, wait: float | None) -> int:
    """Let workers take nothing more and, with `wait`, see their last job end (or `NOT_IN_TIME`)."""

    def drain_all(fleet: Fleet) -> int:
        workers = [fleet.pause(name, True) for name in names]
        status = 0
        for worker in workers:
            print(f"draining {worker.id}")
        for worker in workers if wait is not None else ():
            if fleet.wait(worker.id, ("drained",), wait) is None:
                print(f"tgq: {worker.id} is gone, or not drained after {wait:g} s", file=sys.stderr)
                status = NOT_IN_TIME
            else:
                print(f"drained {worker.id}")
        return status

    return _with_fleet(configuration, drain_all)


def undrain(configuration: Configuration, names: Sequence[str]) -> int:
    """Let drained workers take jobs again."""

    def go_on(fleet: Fleet) -> int:
        for worker in [fleet.pause(name, False) for name in names]:
            print(f"taking jobs again: {worker.id}")
        return 0

    return _with_fleet(configuration, go_on)


def _with_fleet(configuration: Configuration, act: Callable[[Fleet], int]) -> int:
    """Exit status of `act`; 1 when Redis is away or a name is not known."""
    settings = configuration.settings
    try:
        with sync_redis(settings) as client:
            return act(Fleet(client, settings))
    except (redis.RedisError, ValueError) as error:
        print(f"tgq: {no_answer(settings, error)}", file=sys.stderr)
    except Unknown as error:
        print(f"tgq: {error}", file=sys.stderr)
    return 1


def _json(rows: list[dict[str, Any]]) -> int:
    print(json.dumps(rows, indent=2))
    return 0


def _age(seconds: float) -> str:
    return f"{max(seconds, 0.0):.1f}s"
