"""What the engines count, from the records of their workers, as TGI's `tgi_batch_*` and `tgi_queue_size`.

A worker's totals leave with its record. So that sums never go down, the last totals seen of each worker are kept: in the
directory all web processes of the host share, or in memory when there is none.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from common.metrics_buckets import BATCH_SIZE_BUCKETS, DURATION_BUCKETS
from common.wire import EngineStats, Histogram, WorkerRecord

_decode_stats = msgspec.json.Decoder(EngineStats).decode


class EngineTotals:
    """The last totals of every worker ever seen since the web service started."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._seen: dict[str, EngineStats] = {}

    def update(self, records: Iterable[WorkerRecord]) -> list[EngineStats]:
        """Take in the records of live workers; returns the totals of all workers, dead ones included."""
        for record in records:
            if record.stats.inference_count:
                self._keep(record.id, record.stats)
        if self._directory is not None:
            for path in self._directory.glob("engine_*.json"):
                try:
                    self._seen[path.stem] = _decode_stats(path.read_bytes())
                except (OSError, msgspec.DecodeError):
                    continue  # cleaned up under our hands
        return list(self._seen.values())

    def _keep(self, worker: str, stats: EngineStats) -> None:
        name = f"engine_{quote(worker, safe='')}"
        self._seen[name] = stats
        if self._directory is not None:
            unfinished = self._directory / f"{name}.{os.getpid()}.tmp"
            unfinished.write_bytes(msgspec.json.encode(stats))
            unfinished.replace(self._directory / f"{name}.json")


def total_families(totals: Sequence[EngineStats]) -> list[Metric]:
    """What the engines have done so far; `totals` is what `EngineTotals.update` returned."""
    return [
        _counter("tgi_batch_inference_count", "Model calls", totals, lambda s: s.inference_count),
        _counter("tgi_batch_inference_success", "Model calls that succeeded", totals, lambda s: s.inference_success),
        _counter("tgi_batch_inference_failure", "Model calls that failed", totals, lambda s: s.inference_failure),
        _seconds("tgi_batch_inference_duration", "One step", totals, lambda s: s.inference_seconds),
        _seconds("tgi_batch_forward_duration", "One model call", totals, lambda s: s.forward_seconds),
        _seconds("tgi_batch_decode_duration", "Sampling and detokenizing", totals, lambda s: s.decode_seconds),
        _batch_sizes(totals),
        _sum(
            "tgq_prefix_asked_tokens", "Tokens looked for in the prefix cache", totals, lambda s: s.prefix_asked_tokens
        ),
        _sum("tgq_prefix_hit_tokens", "Tokens found in the prefix cache", totals, lambda s: s.prefix_hit_tokens),
        _sum("tgq_preemptions", "Sequences that gave way to others", totals, lambda s: s.preemptions),
    ]


def current_families(
    records: Sequence[WorkerRecord], queued: Mapping[str, int], ages: Mapping[str, float]
) -> list[Metric]:
    """What the engines are at.

    Args:
        records: live workers of all models.
        queued: jobs in the queues of each model that no worker has taken.
        ages: of the job of each model that is next, in seconds; 0 without one.
    """
    stats = [record.stats for record in records]
    capacity = sum(record.card.max_batch_total_tokens for record in records if record.card is not None)
    return [
        GaugeMetricFamily("tgi_batch_current_size", "Sequences running", sum(s.running for s in stats)),
        GaugeMetricFamily(
            "tgi_batch_current_max_tokens",
            "Tokens reserved by running sequences",
            sum(s.reserved_tokens for s in stats),
        ),
        GaugeMetricFamily("tgi_batch_max_total_tokens", "Tokens the engines have room for", capacity),
        GaugeMetricFamily("tgi_queue_size", "Requests waiting", sum(queued.values()) + sum(s.waiting for s in stats)),
        _of_models("tgq_queue_jobs", "Jobs that no worker has taken", queued),
        _of_models("tgq_queue_oldest_seconds", "Age of the job that is next", ages),
        _workers(records),
    ]


def _counter(
    name: str, help_text: str, totals: Sequence[EngineStats], values: Callable[[EngineStats], dict[str, int]]
) -> Metric:
    sums: Counter[str] = Counter()
    for stats in totals:
        sums.update(values(stats))
    family = CounterMetricFamily(name, help_text, labels=["method"])
    for method, value in sorted(sums.items()):
        family.add_metric([method], value)
    return family


def _sum(name: str, help_text: str, totals: Sequence[EngineStats], value: Callable[[EngineStats], int]) -> Metric:
    return CounterMetricFamily(name, help_text, sum(map(value, totals)))


def _seconds(
    name: str, help_text: str, totals: Sequence[EngineStats], values: Callable[[EngineStats], dict[str, Histogram]]
) -> Metric:
    family = HistogramMetricFamily(name, f"{help_text}, in seconds", labels=["method"])
    for method in sorted({method for stats in totals for method in values(stats)}):
        parts = [values(stats)[method] for stats in totals if method in values(stats)]
        _add(family, [method], parts, DURATION_BUCKETS)
    return family


def _batch_sizes(totals: Sequence[EngineStats]) -> Metric:
    family = HistogramMetricFamily("tgi_batch_next_size", "Sequences in one step", labels=[])
    parts = [stats.batch_size for stats in totals if stats.batch_size is not None]
    if parts:
        _add(family, [], parts, BATCH_SIZE_BUCKETS)
    return family


def _add(family: HistogramMetricFamily, labels: list[str], parts: Sequence[Histogram], bounds: Sequence[float]) -> None:
    names = [*(str(float(bound)) for bound in bounds), "+Inf"]
    # A worker of another version may have other buckets.
    parts = [part for part in parts if len(part.counts) == len(names)]
    running, buckets = 0, []
    for name, counts in zip(names, zip(*(part.counts for part in parts), strict=True), strict=False):
        running += sum(counts)
        buckets.append((name, running))
    if buckets:
        family.add_metric(labels, buckets, sum(part.sum for part in parts))


def _of_models(name: str, help_text: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=["model"])
    for model, value in sorted(values.items()):
        family.add_metric([model], value)
    return family


def _workers(records: Sequence[WorkerRecord]) -> Metric:
    states = Counter({"starting": 0, "ready": 0, "restarting": 0, "draining": 0, "drained": 0})
    states.update(record.state for record in records)
    family = GaugeMetricFamily("tgq_workers", "Live workers", labels=["state"])
    for state, count in states.items():
        family.add_metric([state], count)
    return family
