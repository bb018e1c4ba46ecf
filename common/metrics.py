"""What a web process counts, under TGI's names where TGI has them.

With `PROMETHEUS_MULTIPROC_DIR` set (as `tgq web` does) every process writes its numbers to files there and any of them
answers for all: counters and histograms go on after a process has died, gauges count the living. Labels have only values
from this file, never anything a client sent.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from common.client.counters import ClientCounters
from common.limits import Limits
from common.metrics_buckets import DURATION_BUCKETS

Hop = Literal["admission", "validation", "dispatch", "queue", "relay"]
"""Where a request's time goes before and beside the engine.

admission: getting a permit; validation: rules and tokenizing; dispatch: until Redis confirmed the job; queue: until an
engine took it; relay: what accepted requests took longer than their inference.
"""

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_HOP_BUCKETS = (0.0005, 0.001, 0.0025, *_LATENCY_BUCKETS)


def multiprocess_directory() -> Path | None:
    directory = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    return Path(directory) if directory else None


class BufferedHistogram:
    """Observations that are added to a histogram together, when `flush` is called.

    With several processes each observation of a shared histogram costs a dozen microseconds: a tenth of all that is done
    for a short request, and too much for every token.
    """

    __slots__ = ("_bounds", "_counts", "_histogram", "_observed", "_sum")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._bounds = histogram._upper_bounds
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        self._observed = False

    def observe(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count
        self._observed = True

    def flush(self) -> None:
        if not self._observed:
            return
        # prometheus_client offers no public way to add more than one observation at a time.
        for bucket, count in zip(self._histogram._buckets, self._counts, strict=True):
            if count:
                bucket.inc(count)
        self._histogram._sum.inc(self._sum)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        self._observed = False


class WebMetrics:
    """The metrics of one web process; what its histograms observe is told by `flush`."""

    def __init__(self, limits: Limits) -> None:
        self._registry = registry = CollectorRegistry()
        self._histograms: list[BufferedHistogram] = []
        self.request_count = Counter("tgi_request_count", "Requests received", registry=registry)
        self.request_success = Counter("tgi_request_success", "Requests finished", registry=registry)
        self.request_failure = Counter("tgi_request_failure", "Requests failed", ["err"], registry=registry)
        self.request_duration = self._seconds("tgi_request_duration", "From arrival to the last token")
        self.validation_duration = self._seconds("tgi_request_validation_duration", "From arrival to the queue")
        self.queue_duration = self._seconds("tgi_request_queue_duration", "From the queue to the first step")
        self.inference_duration = self._seconds(
            "tgi_request_inference_duration", "From the first step to the last token"
        )
        self.mean_time_per_token = self._seconds(
            "tgi_request_mean_time_per_token_duration", "Inference divided by generated tokens"
        )
        self.generated_tokens = self._tokens(
            "tgi_request_generated_tokens", "Tokens generated", limits.max_total_tokens
        )
        self.input_length = self._tokens("tgi_request_input_length", "Prompt tokens", limits.max_input_tokens)
        self.max_new_tokens = self._tokens("tgi_request_max_new_tokens", "Tokens asked for", limits.max_total_tokens)

        self.time_to_first_token = self._histogram(
            "tgq_time_to_first_token_seconds", "From arrival to the first token", _LATENCY_BUCKETS
        )
        self.inter_token = self._histogram(
            "tgq_inter_token_seconds",
            "Time between tokens of one answer; those that arrived together share it evenly",
            _LATENCY_BUCKETS,
        )
        hops = Histogram(
            "tgq_hop_seconds", "Time of a request in each hop", ["hop"], buckets=_HOP_BUCKETS, registry=registry
        )
        self._hops = {hop: self._buffered(hops.labels(hop)) for hop in get_args(Hop)}
        self.rejected = Counter(
            "tgq_rejected", "Requests refused before they were queued", ["reason"], registry=registry
        )
        self.cancelled = Counter("tgq_cancelled", "Requests whose client went away", ["phase"], registry=registry)
        self.deadline_exceeded = Counter(
            "tgq_deadline_exceeded", "Requests ended by a time limit", ["reason"], registry=registry
        )
        self._resent = Counter(
            "tgq_failovers",
            "Requests sent to a worker again, by what became of the last one",
            ["cause"],
            registry=registry,
        )
        self._given_up = Counter(
            "tgq_requests_given_up", "Requests that too many workers were lost with", registry=registry
        )
        self._stale_frames = Counter(
            "tgq_stale_frames", "Frames of attempts that nobody waits for any more", registry=registry
        )
        self._followed = ClientCounters()
        self.in_flight = Gauge(
            "tgq_requests_in_flight", "Requests being worked on", multiprocess_mode="livesum", registry=registry
        )
        self.streams = Gauge("tgq_streams", "Open event streams", multiprocess_mode="livesum", registry=registry)
        self.tasks = Gauge(
            "tgq_tasks",
            "Asyncio tasks, as of each process' last scrape",
            multiprocess_mode="livesum",
            registry=registry,
        )

    def hop(self, hop: Hop, seconds: float) -> None:
        self._hops[hop].observe(max(seconds, 0.0))

    def flush(self) -> None:
        """Add what was observed since the last time to what the processes share."""
        for histogram in self._histograms:
            histogram.flush()

    def follow(self, counters: ClientCounters) -> None:
        """Take in what a client has counted since the last call."""
        last, now = self._followed, counters.copy()
        for cause, count in now.resent.items():
            self._resent.labels(cause).inc(count - last.resent[cause])
        self._given_up.inc(now.given_up - last.given_up)
        self._stale_frames.inc(now.stale_frames - last.stale_frames)
        self._followed = now

    def families(self) -> list[Metric]:
        """The metrics of all web processes of this host."""
        directory = multiprocess_directory()
        if directory is None:
            return list(self._registry.collect())
        _forget_dead_gauges(directory)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(directory))  # type: ignore[no-untyped-call]
        return list(registry.collect())

    def _seconds(self, name: str, help_text: str) -> BufferedHistogram:
        return self._histogram(name, f"{help_text}, in seconds", DURATION_BUCKETS)

    def _tokens(self, name: str, help_text: str, most: int) -> BufferedHistogram:
        # TGI: a hundred equal steps up to the limit.
        return self._histogram(name, help_text, [most * step / 100 for step in range(1, 101)])

    def _histogram(self, name: str, help_text: str, buckets: Sequence[float]) -> BufferedHistogram:
        return self._buffered(Histogram(name, help_text, buckets=buckets, registry=self._registry))

    def _buffered(self, histogram: Histogram) -> BufferedHistogram:
        self._histograms.append(BufferedHistogram(histogram))
        return self._histograms[-1]


def exposition(families: Iterable[Metric]) -> bytes:
    """Prometheus' text format, with TGI's counters named as TGI names them: without `_total`."""
    return "".join(line for family in families for line in _lines(family)).encode()


def _lines(family: Metric) -> Iterator[str]:
    suffix = "_total" if family.type == "counter" and not family.name.startswith("tgi_") else ""
    help_text = family.documentation.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {family.name}{suffix} {help_text}\n# TYPE {family.name}{suffix} {family.type}\n"
    for sample in family.samples:
        if sample.name.endswith("_created"):
            continue
        name = family.name + suffix if family.type == "counter" else sample.name
        labels = ",".join(f'{key}="{_escape(value)}"' for key, value in sample.labels.items())
        yield f"{name}{{{labels}}} {_number(sample.value)}\n" if labels else f"{name} {_number(sample.value)}\n"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _forget_dead_gauges(directory: Path) -> None:
    """Drop the gauges of processes that are gone, however they went."""
    for path in directory.glob("gauge_live*.db"):
        found = re.search(r"_(\d+)\.db$", path.name)
        if found and not Path(f"/proc/{found[1]}").exists() and Path("/proc/self").exists():
            mark_process_dead(int(found[1]), str(directory))  # type: ignore[no-untyped-call]
