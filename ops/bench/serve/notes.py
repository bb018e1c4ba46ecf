"""What readers of the figures must know: said only where it is so."""

from __future__ import annotations

from ops.bench.serve.figures import Spread
from ops.bench.serve.plan import LoadKind, Plan
from ops.bench.serve.prompts import PromptSource
from ops.bench.serve.results import Point, Results
from ops.bench.serve.sweep import Sweep

_LATE_SECONDS = 0.01
_LATE_SHARE = 0.05
"""Below this share of what is measured, the client's own delay changes little."""
_BUSY = 0.85
"""Share of a core from which on the client itself may be what is measured."""
_SATURATED, _GROWN = 0.9, 1.5


def notes(results: Results, sweep: Sweep, plan: Plan, prompts: PromptSource) -> list[str]:
    """Sentences, the gravest first."""
    found = []
    if results.stopped:
        left = sum(point.total("unfinished") for point in results.points)
        found.append(f"The run was stopped: what was measured until then is shown; {left} requests were given up.")
    if late := [f"{_where(point)} ({signs})" for point in results.points if (signs := _lateness(point))]:
        found.append(f"This client did not keep up, and its own delays are in the latencies: {'; '.join(late)}.")
    for point in results.points:
        found += _of_the_answers(point, plan)
    if plan.rounds == 1 and results.ratios:
        found.append("One round only: the ratios have no spread, and say nothing of chance.")
    if prompts.different is not None and sweep.prompts_used > prompts.different:
        found.append(
            f"{sweep.prompts_used} requests were made of {prompts.different} prompts: a server that keeps the work on prompts it "
            "has seen answers repeated ones faster than new ones."
        )
    return found


def _where(point: Point) -> str:
    return f"{point.target.name}, {point.load}"


def _lateness(point: Point) -> str:
    """The signs that the client could not keep up; empty when there are none."""
    signs = []
    late, lag = point.late, point.loop_lag
    if late is not None and late.percentiles[99] > _tolerated(point.latency("ttft")):
        signs.append(f"requests were sent {late.percentiles[99] * 1000:.0f} ms late, p99")
    if lag is not None and lag.percentiles[99] > _tolerated(point.latency("tpot")):
        signs.append(f"its event loop was {lag.percentiles[99] * 1000:.0f} ms late, p99")
    if point.cpu_share > _BUSY:
        signs.append(f"it used {point.cpu_share:.0%} of a core")
    return ", ".join(signs)


def _tolerated(latency: Spread | None) -> float:
    return _LATE_SECONDS if latency is None else max(_LATE_SECONDS, _LATE_SHARE * latency.percentiles[50])


def _of_the_answers(point: Point, plan: Plan) -> list[str]:
    found = []
    done = point.total("completed")
    if not done:
        return [f"{_where(point)}: no request was completed."]
    if uncounted := done - point.total("counted"):
        found.append(
            f"{_where(point)}: the server told no usage for {uncounted} answers: each event with output counts as one token."
        )
    per_event = point.tokens_per_event
    if per_event is not None and per_event > 1.05:
        found.append(
            f"{_where(point)}: an event brought {per_event:.2f} tokens on average; ITL is per token, each gap being shared among "
            "the tokens of its event."
        )
    if short := point.total("short"):
        found.append(f"{_where(point)}: {short} of {done} answers ended before the length that was asked for.")
    grown = max((run.growth or 0.0 for run in point.runs.values()), default=0.0)
    if point.offered is not None and point.request_throughput < _SATURATED * point.offered and grown > _GROWN:
        found.append(
            f"{_where(point)}: {point.request_throughput:.2f} of {point.offered:.2f} requests/s were completed, and the last ones "
            f"took {grown:.1f} times as long as the first: more was offered than can be done, and latencies grow with the run."
        )
    if plan.max_concurrency is not None and point.peak >= plan.max_concurrency and point.load.kind is LoadKind.RATE:
        found.append(
            f"{_where(point)}: --max-concurrency {plan.max_concurrency} held requests back; their latency counts from when they were due."
        )
    return found
