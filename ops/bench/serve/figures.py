"""From records to figures: what one run of a load showed, and several of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ops.bench.serve.load import Outcome
from ops.bench.serve.record import Record

Samples = NDArray[np.float64]
PERCENTILES = (50, 90, 95, 99)
LATENCIES = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True)
class Spread:
    """Mean, percentiles and maximum of some times, in seconds."""

    count: int
    mean: float
    percentiles: Mapping[int, float]
    most: float

    @classmethod
    def of(cls, samples: Samples) -> Spread | None:
        """None of no samples; between two samples percentiles are interpolated."""
        if not len(samples):
            return None
        values = np.percentile(samples, PERCENTILES)
        percentiles = dict(zip(PERCENTILES, map(float, values), strict=True))
        return cls(len(samples), float(samples.mean()), percentiles, float(samples.max()))


@dataclass(frozen=True)
class Run:
    """One load on one server, measured once. Times in seconds."""

    seconds: float
    """From the first request to the end of the last one."""
    sent: int
    completed: int
    failures: Counter[str]
    reasons: dict[str, str]
    """What the first failure of each kind said."""
    unfinished: int
    prompt_tokens: int
    output_tokens: int
    samples: dict[str, Samples]
    """By names of `LATENCIES`: one for each completed request, for ITL one for each gap."""
    good: int
    """Completed requests that kept every goal."""
    peak: int
    offered: float | None
    """Requests a second as they were to be sent, by the gaps drawn; None for a closed loop or when all came at once."""
    late: Samples
    """By how much the client itself missed the time of each request; empty for a closed loop, which has no such times."""
    loop_lag: Samples
    cpu_share: float
    counted: int
    """Completed requests whose tokens the server counted; those of the others are events."""
    events: int
    """Events with output of completed requests."""
    short: int
    """Completed requests whose answer ended before its length."""
    growth: float | None
    """Median E2E latency of the last quarter of the requests over that of the first; None of less than four of them."""


def measured(outcome: Outcome, goals: Mapping[str, float]) -> Run:
    """What the records of a run come to."""
    done = [record for record in outcome.records if not record.failure]
    failed = [record for record in outcome.records if record.failure]
    reasons: dict[str, str] = {}
    for record in failed:
        reasons.setdefault(record.failure, record.reason)
    return Run(
        seconds=outcome.ended - outcome.started,
        sent=outcome.sent,
        completed=len(done),
        failures=Counter(record.failure for record in failed),
        reasons=reasons,
        unfinished=outcome.unfinished,
        prompt_tokens=sum(record.prompt_tokens or 0 for record in done),
        output_tokens=sum(record.tokens for record in done),
        samples=_samples(done),
        good=sum(_is_good(record, goals) for record in done),
        peak=outcome.peak,
        offered=_offered(outcome),
        late=np.array([record.woke - record.intended for record in outcome.records if outcome.last_intended]),
        loop_lag=np.array(outcome.loop_lag),
        cpu_share=outcome.cpu_share,
        counted=sum(record.output_tokens is not None for record in done),
        events=sum(len(record.output_at) for record in done),
        short=sum(record.tokens < record.asked_tokens for record in done),
        growth=_growth(done),
    )


def ttft(record: Record) -> float:
    return record.output_at[0] - record.intended


def e2e(record: Record) -> float:
    return record.finish_at - record.intended


def tpot(record: Record) -> float | None:
    """Mean time of a token after the first, by the server's count; None of answers of one token."""
    tokens = record.tokens
    return (
        (record.output_at[-1] - record.output_at[0]) / (tokens - 1)
        if tokens > 1 and len(record.output_at) > 1
        else None
    )


def gaps(record: Record) -> Samples:
    """Seconds between tokens. An event with several tokens gives each of them its share of the gap before it.

    How many are in an event is what the server tells along the way, or else what its count at the end comes to on average.
    """
    between = np.diff(np.array(record.output_at))
    if not len(between):
        return between
    if len(record.counts) == len(record.output_at):
        steps = np.diff(np.array(record.counts))
        # An event without a token of its own is a part of the one before it.
        steps = np.maximum(steps, 1)
        return np.repeat(between / steps, steps)
    return between / max(1.0, (record.tokens - 1) / len(between))


def merged(runs: Sequence[Run], name: str) -> Spread | None:
    """A latency of several runs together."""
    return Spread.of(np.concatenate([run.samples[name] for run in runs]))


def _samples(done: Sequence[Record]) -> dict[str, Samples]:
    paces = (tpot(record) for record in done)
    return {
        "ttft": np.array([ttft(record) for record in done]),
        "tpot": np.array([pace for pace in paces if pace is not None]),
        "itl": np.concatenate([gaps(record) for record in done]) if done else np.array([]),
        "e2e": np.array([e2e(record) for record in done]),
    }


def _is_good(record: Record, goals: Mapping[str, float]) -> bool:
    values = {"ttft": ttft(record), "tpot": tpot(record), "e2e": e2e(record)}
    return all((value := values[name]) is None or value <= limit for name, limit in goals.items())


def _offered(outcome: Outcome) -> float | None:
    span = outcome.last_intended - outcome.started
    return (outcome.sent - 1) / span if span > 0 else None


def _growth(done: Sequence[Record]) -> float | None:
    """A server that is offered more than it can do lets its queue grow as long as that lasts."""
    quarter = len(done) // 4
    if not quarter:
        return None
    latencies = [e2e(record) for record in sorted(done, key=lambda record: record.intended)]
    return median(latencies[-quarter:]) / median(latencies[:quarter])
