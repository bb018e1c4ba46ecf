"""A whole benchmark as its readers see it: points, ratios between two servers, and what must be known to read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ops.bench.serve.figures import LATENCIES, Run, Samples, Spread, merged
from ops.bench.serve.plan import Load
from ops.bench.serve.sweep import Sweep
from ops.bench.serve.target import Target


@dataclass(frozen=True)
class Point:
    """One load on one server, over all rounds."""

    load: Load
    target: Target
    runs: Mapping[int, Run]
    """By round."""

    def total(self, name: str) -> int:
        """Sum of a count over the rounds."""
        return sum(int(getattr(run, name)) for run in self.runs.values())

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.runs.values())

    @property
    def failures(self) -> Counter[str]:
        return sum((run.failures for run in self.runs.values()), Counter())

    @property
    def request_throughput(self) -> float:
        """Completed requests a second."""
        return self.total("completed") / self.seconds

    @property
    def output_throughput(self) -> float:
        """Output tokens a second, of completed requests."""
        return self.total("output_tokens") / self.seconds

    @property
    def total_throughput(self) -> float:
        """Tokens a second, prompts' and outputs'."""
        return (self.total("output_tokens") + self.total("prompt_tokens")) / self.seconds

    @property
    def goodput(self) -> float:
        """Requests a second that kept every goal."""
        return self.total("good") / self.seconds

    @property
    def offered(self) -> float | None:
        rates = [run.offered for run in self.runs.values() if run.offered is not None]
        return sum(rates) / len(rates) if rates else None

    @property
    def peak(self) -> int:
        return max(run.peak for run in self.runs.values())

    @property
    def cpu_share(self) -> float:
        return max(run.cpu_share for run in self.runs.values())

    @property
    def tokens_per_event(self) -> float | None:
        events = self.total("events")
        return self.total("output_tokens") / events if events else None

    def latency(self, name: str) -> Spread | None:
        """One of `LATENCIES`, all rounds together, in seconds."""
        return merged(list(self.runs.values()), name)

    def samples(self, name: str) -> Samples:
        return np.concatenate([run.samples[name] for run in self.runs.values()])

    @property
    def late(self) -> Spread | None:
        """Seconds by which requests were sent too late, by the client's own fault."""
        return Spread.of(np.concatenate([run.late for run in self.runs.values()]))

    @property
    def loop_lag(self) -> Spread | None:
        return Spread.of(np.concatenate([run.loop_lag for run in self.runs.values()]))


@dataclass(frozen=True)
class Ratio:
    """A figure of the second server over the same of the first, round by round."""

    name: str
    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.rounds)

    @property
    def low(self) -> float:
        return min(self.rounds)

    @property
    def high(self) -> float:
        return max(self.rounds)


@dataclass(frozen=True)
class Results:
    """Points in the order of the plan, server by server within each load."""

    points: Sequence[Point]
    targets: Sequence[Target]
    ratios: Mapping[Load, Sequence[Ratio]]
    """Empty for one server."""
    stopped: bool

    def of(self, target: Target) -> list[Point]:
        return [point for point in self.points if point.target == target]


def results(sweep: Sweep, loads: Sequence[Load], targets: Sequence[Target]) -> Results:
    """What a sweep has come to."""
    points = {key: Point(*key, runs=runs) for key, runs in sweep.runs.items()}
    ordered = [points[load, target] for load in loads for target in targets if (load, target) in points]
    ratios = {}
    if len(targets) == 2:
        first, second = targets
        for load in loads:
            if (load, first) in points and (load, second) in points:
                ratios[load] = _ratios(points[load, first], points[load, second])
    return Results(ordered, targets, ratios, sweep.stopped)


def _ratios(first: Point, second: Point) -> list[Ratio]:
    both = ((first.runs[number], second.runs[number]) for number in sorted(first.runs.keys() & second.runs.keys()))
    # What was stopped on its way had another mix of requests.
    pairs = [(one, other) for one, other in both if not one.unfinished + other.unfinished]
    found = []
    for name in _figures(pairs[0][0]) if pairs else ():
        each = [(_figures(one)[name], _figures(other)[name]) for one, other in pairs]
        values = tuple(above / below for below, above in each if below and above is not None)
        if values:
            found.append(Ratio(name, values))
    return found


def _figures(run: Run) -> dict[str, float | None]:
    """What servers are compared by."""
    spreads = {name: Spread.of(run.samples[name]) for name in LATENCIES}

    def at(name: str, percent: int) -> float | None:
        spread = spreads[name]
        return spread.percentiles[percent] if spread is not None else None

    return {
        "output tokens/s": run.output_tokens / run.seconds,
        "requests/s": run.completed / run.seconds,
        "TTFT p50": at("ttft", 50),
        "TTFT p99": at("ttft", 99),
        "TPOT p50": at("tpot", 50),
        "ITL p99": at("itl", 99),
        "E2E p50": at("e2e", 50),
    }
