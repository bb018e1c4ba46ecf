"""From what a client saw to what is told of it."""

from __future__ import annotations

import json
import statistics

import numpy as np
import pytest

from ops.bench.serve.document import _spread
from ops.bench.serve.figures import Spread, gaps, measured, tpot
from ops.bench.serve.load import Outcome
from ops.bench.serve.record import Record


def record(
    *at: float, intended: float = 0.0, tokens: int | None = None, counts: tuple[int, ...] = (), asked: int = 4
) -> Record:
    """An answer whose events with output came at these moments."""
    made = Record(intended, asked, woke=intended, output_at=list(at), counts=list(counts), output_tokens=tokens)
    made.finish_at = at[-1]
    return made


def outcome(*records: Record, seconds: float = 10.0, last_intended: float = 0.0) -> Outcome:
    return Outcome(started=0.0, ended=seconds, records=list(records), sent=len(records), last_intended=last_intended)


def test_percentiles_are_interpolated_between_samples() -> None:
    samples = np.array([0.1, 0.2, 0.3, 0.4, 1.0])
    spread = Spread.of(samples)
    assert spread is not None
    cuts = statistics.quantiles(samples.tolist(), n=100, method="inclusive")
    assert spread.percentiles == {percent: pytest.approx(cuts[percent - 1]) for percent in (50, 90, 95, 99)}
    assert (spread.count, spread.most) == (5, 1.0)
    assert spread.mean == pytest.approx(0.4)
    assert Spread.of(np.array([])) is None


def test_a_spread_of_one_sample_is_that_sample() -> None:
    told = _spread(Spread.of(np.array([0.25])))
    assert told == {"mean": 250.0, "p50": 250.0, "p90": 250.0, "p95": 250.0, "p99": 250.0, "max": 250.0}
    assert json.dumps(told, allow_nan=False)


def test_latencies_count_from_when_a_request_was_to_be_sent() -> None:
    late = record(3.0, 3.5, 4.0, intended=1.0, tokens=3)
    late.woke = 2.5
    run = measured(outcome(late, last_intended=1.0), {})
    assert run.samples["ttft"].tolist() == [2.0]
    assert run.samples["e2e"].tolist() == [3.0]
    assert run.late.tolist() == [1.5]


def test_pace_is_by_the_servers_count_of_tokens() -> None:
    # Three events with seven tokens: six come after the first one's.
    several = record(1.0, 1.3, 1.6, tokens=7)
    assert tpot(several) == pytest.approx(0.1)
    assert gaps(several) == pytest.approx([0.1, 0.1])
    assert gaps(record(1.0, 1.3, 1.6)) == pytest.approx([0.3, 0.3])


def test_with_counts_along_the_way_each_token_has_its_share_of_its_own_gap() -> None:
    several = record(1.0, 1.3, 1.6, tokens=5, counts=(1, 4, 5))
    assert gaps(several) == pytest.approx([0.1, 0.1, 0.1, 0.3])
    # An event without a token of its own does not divide by zero.
    assert gaps(record(1.0, 1.2, 1.3, tokens=2, counts=(1, 1, 2))) == pytest.approx([0.2, 0.1])


def test_answers_of_one_token_have_no_pace() -> None:
    run = measured(outcome(record(1.0, tokens=1)), {"tpot": 0.001})
    assert (len(run.samples["tpot"]), len(run.samples["itl"])) == (0, 0)
    assert run.good == 1


def test_good_requests_keep_every_limit() -> None:
    records = [
        record(0.5, 0.6, 0.7, tokens=3),
        record(0.6, 0.7, 0.8, tokens=3),  # The first token is late.
        record(0.5, 0.8, 1.1, tokens=3),  # The others are slow.
        record(0.5, 0.6, 0.7, tokens=3, intended=-0.3),  # It waited.
    ]
    assert measured(outcome(*records), {"ttft": 0.5, "tpot": 0.1 + 1e-9, "e2e": 0.9}).good == 1
    assert measured(outcome(*records), {"tpot": 0.1 + 1e-9}).good == 3
    assert measured(outcome(*records), {}).good == 4


def test_failures_are_counted_by_kind_and_are_in_no_latency() -> None:
    broken = record(0.5, 0.6)
    broken.fail("broken stream", "first\nwords \x1b[31m")
    broken.fail("timeout")
    refused = Record(0.0, 4)
    refused.fail("HTTP 429", "busy")
    run = measured(outcome(record(1.0, 2.0, tokens=2), broken, refused), {})
    assert run.failures == {"broken stream": 1, "HTTP 429": 1}
    assert run.reasons == {"broken stream": "first words  [31m", "HTTP 429": "busy"}
    assert (run.completed, run.output_tokens, run.short) == (1, 2, 1)
    assert run.samples["ttft"].tolist() == [1.0]


def test_the_offered_rate_is_the_one_drawn() -> None:
    records = [record(moment + 0.5, intended=moment) for moment in (0.0, 1.0, 4.0)]
    assert measured(outcome(*records, last_intended=4.0), {}).offered == 0.5
    assert measured(outcome(*records), {}).offered is None


def test_a_growing_queue_shows_in_the_last_quarter() -> None:
    steady = [record(number + 1.0, intended=number) for number in range(8)]
    growing = [record(2 * number + 1.0, intended=number) for number in range(8)]
    assert measured(outcome(*steady), {}).growth == 1
    assert measured(outcome(*growing), {}).growth == pytest.approx(7.5 / 1.5)
    assert measured(outcome(*steady[:3]), {}).growth is None
