"""`tgq top`: the fleet as it works."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import redis
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from common.redis_clients import sync_redis
from common.wire import WorkerRecord
from ops.configuration import Configuration
from ops.fleet import Fleet, Queue, no_answer, shown_state

_STATE_STYLES = {"ready": "green", "starting": "yellow", "restarting": "red", "draining": "yellow", "drained": "dim"}


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    workers: list[WorkerRecord]
    queues: list[Queue]


def run(configuration: Configuration, *, interval: float, once: bool) -> int:
    """Show the fleet until Ctrl-C, or once where nobody watches it change; returns the exit status (1: Redis is away at the
    start)."""
    settings = configuration.settings
    try:
        with sync_redis(settings) as client:
            fleet = Fleet(client, settings)
            look = _look(fleet)
            if once or not sys.stdout.isatty():
                Console().print(_shown(look, None))
                return 0
            with Live(_shown(look, None), screen=True, auto_refresh=False) as live:
                while True:
                    time.sleep(interval)
                    before = look
                    try:
                        look = _look(fleet)
                        live.update(_shown(look, before), refresh=True)
                    except redis.RedisError as error:
                        live.update(Text(f"Redis does not answer: {type(error).__name__}", style="red"), refresh=True)
    except KeyboardInterrupt:
        return 0
    except (redis.RedisError, ValueError) as error:
        print(f"tgq: {no_answer(settings, error)}", file=sys.stderr)
        return 1


def _look(fleet: Fleet) -> _Look:
    return _Look(time.monotonic(), fleet.workers(), fleet.queues())


def _shown(look: _Look, before: _Look | None) -> RenderableType:
    return Group(_workers(look, before), _queues(look))


def _workers(look: _Look, before: _Look | None) -> Table:
    table = Table(title="workers", title_justify="left", box=None, header_style="bold", pad_edge=False)
    table.add_column("id", no_wrap=True)
    table.add_column("model", overflow="ellipsis", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for name in ("run", "wait", "KV", "tok/s", "prompt/s", "prefix", "preempted"):
        table.add_column(name, justify="right", no_wrap=True)
    earlier = {worker.id: worker for worker in before.workers} if before is not None else {}
    seconds = look.at - before.at if before is not None else 0.0
    for worker in look.workers:
        stats, last = worker.stats, earlier.get(worker.id)
        known = last is not None and seconds > 0
        table.add_row(
            worker.id,
            worker.model,
            Text(shown_state(worker), style=_STATE_STYLES.get(worker.state, "")),
            str(worker.running),
            str(worker.waiting),
            _share(stats.reserved_tokens, worker.card.max_batch_total_tokens if worker.card is not None else 0),
            _rate(stats.generated_tokens, last.stats.generated_tokens, seconds) if last and known else "-",
            _rate(stats.prompt_tokens, last.stats.prompt_tokens, seconds) if last and known else "-",
            _share(stats.prefix_hit_tokens, stats.prefix_asked_tokens),
            str(stats.preemptions),
        )
    return table


def _queues(look: _Look) -> Table:
    table = Table(title="\nqueues", title_justify="left", box=None, header_style="bold", pad_edge=False)
    for name in ("model", "class"):
        table.add_column(name, overflow="fold")
    for name in ("jobs", "tokens", "oldest"):
        table.add_column(name, justify="right")
    for queue in look.queues:
        style = "" if queue.jobs else "dim"
        row = (queue.model, queue.job_class, str(queue.jobs), str(queue.tokens), f"{queue.oldest:.1f}s")
        table.add_row(*row, style=style)
    return table


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _rate(now: int, before: int, seconds: float) -> str:
    # An engine that started again counts from its worker's start on: never less than before.
    return f"{(now - before) / seconds:.0f}"
