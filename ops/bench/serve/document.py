"""Results as JSON: a form that programs may rely on. Times are milliseconds; what there is none of is null."""

from __future__ import annotations

import datetime
import math
import os
import platform
from collections.abc import Sequence
from typing import Any

from common import __version__
from ops.bench.serve.apis import Api, Shape
from ops.bench.serve.figures import LATENCIES, Run, Spread, merged
from ops.bench.serve.plan import Load, LoadKind, Plan
from ops.bench.serve.prompts import PromptSource
from ops.bench.serve.results import Point, Ratio, Results

VERSION = 1


def document(
    results: Results, plan: Plan, api: Api, shape: Shape, prompts: PromptSource, notes: Sequence[str]
) -> dict[str, Any]:
    """Everything but the prompts and answers, keys and headers."""
    return {
        "version": VERSION,
        "program": f"tgq bench serve {__version__}",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "client": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "system": platform.platform(terse=True),
        },
        "settings": {
            "api": api.name,
            "prompts": prompts.describe(),
            "output_len": plan.output_len,
            "num_prompts": plan.num_prompts,
            "duration_s": plan.duration,
            "warmup": plan.warmup,
            "rounds": plan.rounds,
            "burstiness": plan.burstiness if plan.loads[0].kind is LoadKind.RATE else None,
            "max_concurrency": plan.max_concurrency,
            "timeout_s": plan.timeout,
            "seed": plan.seed,
            "temperature": shape.temperature,
            "ignore_eos": shape.ignore_eos,
            "continuous_usage": shape.continuous_usage,
            "extra_body": dict(shape.extra),
            "goodput_ms": {name: limit * 1000 for name, limit in plan.goals.items()},
        },
        "servers": [{"name": target.name, "url": target.url, "model": target.model} for target in results.targets],
        "stopped": results.stopped,
        "notes": list(notes),
        "points": [_point(point, plan) for point in results.points],
        "ratios": [
            {"load": _load(load), "figures": {ratio.name: _ratio(ratio) for ratio in ratios}}
            for load, ratios in results.ratios.items()
        ],
    }


def _load(load: Load) -> dict[str, Any]:
    return {"kind": load.kind.value, "value": "inf" if math.isinf(load.value) else load.value}


def _point(point: Point, plan: Plan) -> dict[str, Any]:
    return {
        "server": point.target.name,
        "load": _load(point.load),
        "duration_s": point.seconds,
        "sent": point.total("sent"),
        "completed": point.total("completed"),
        "failures": dict(point.failures.most_common()),
        "unfinished": point.total("unfinished"),
        "max_concurrent_requests": point.peak,
        "offered_rate": point.offered,
        "request_throughput": point.request_throughput,
        "output_throughput": point.output_throughput,
        "total_token_throughput": point.total_throughput,
        "request_goodput": point.goodput if plan.goals else None,
        "prompt_tokens": point.total("prompt_tokens"),
        "output_tokens": point.total("output_tokens"),
        "tokens_counted_by": _counted_by(point),
        "tokens_per_event": point.tokens_per_event,
        "short_answers": point.total("short"),
        **{f"{name}_ms": _spread(point.latency(name)) for name in LATENCIES},
        "client": {
            "sent_late_ms": _spread(point.late),
            "loop_lag_ms": _spread(point.loop_lag),
            "cpu_share": point.cpu_share,
        },
        "rounds": [_run(number, run) for number, run in sorted(point.runs.items())],
    }


def _counted_by(point: Point) -> str | None:
    done, counted = point.total("completed"), point.total("counted")
    return None if not done else "usage" if counted == done else "events" if not counted else "usage and events"


def _run(number: int, run: Run) -> dict[str, Any]:
    return {
        "round": number + 1,
        "duration_s": run.seconds,
        "completed": run.completed,
        "request_throughput": run.completed / run.seconds,
        "output_throughput": run.output_tokens / run.seconds,
        **{f"{name}_ms": _spread(merged([run], name)) for name in LATENCIES},
    }


def _spread(spread: Spread | None) -> dict[str, float] | None:
    if spread is None:
        return None
    percentiles = {f"p{percent}": value * 1000 for percent, value in spread.percentiles.items()}
    return {"mean": spread.mean * 1000, **percentiles, "max": spread.most * 1000}


def _ratio(ratio: Ratio) -> dict[str, Any]:
    return {"median": ratio.median, "min": ratio.low, "max": ratio.high, "rounds": list(ratio.rounds)}
