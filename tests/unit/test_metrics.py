"""The text format and the sums over engines."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from common.client.counters import ClientCounters
from common.engine_metrics import EngineTotals, current_families, total_families
from common.limits import Limits
from common.metrics import WebMetrics, exposition
from common.metrics_buckets import DURATION_BUCKETS
from common.wire import EngineStats, Histogram, ModelCard, WorkerRecord

CARD = ModelCard(
    model_id="m",
    dtype="torch.float32",
    device_type="cpu",
    max_total_tokens=100,
    max_batch_total_tokens=1000,
    max_batch_size=8,
)


def record(name: str, calls: int = 0, *, running: int = 0, waiting: int = 0, reserved: int = 0) -> WorkerRecord:
    counts = [0] * len(DURATION_BUCKETS) + [calls]
    engine = EngineStats(running=running, waiting=waiting, reserved_tokens=reserved)
    if calls:
        engine.inference_count = {"decode": calls}
        engine.forward_seconds = {"decode": Histogram(counts, 1000.0 * calls)}
    return WorkerRecord(
        id=name, pid=1, engine_pid=2, host="h", model="m", state="ready", started_at=0.0, card=CARD, stats=engine
    )


def samples(text: bytes) -> dict[str, float]:
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_names_and_buckets_are_tgis() -> None:
    metrics = WebMetrics(Limits(max_input_tokens=200, max_total_tokens=400))
    metrics.request_count.inc()
    metrics.request_failure.labels("overloaded").inc(2)
    metrics.request_duration.observe(0.0002)
    metrics.generated_tokens.observe(5)
    metrics.rejected.labels("overloaded").inc()
    metrics.flush()
    text = exposition(metrics.families())
    values = samples(text)
    assert values["tgi_request_count"] == 1
    assert values['tgi_request_failure{err="overloaded"}'] == 2
    assert values['tgq_rejected_total{reason="overloaded"}'] == 1
    assert b"# TYPE tgi_request_count counter\n" in text
    assert not any("_created" in name for name in values)
    bounds = [name for name in values if name.startswith("tgi_request_duration_bucket")]
    assert len(bounds) == 36
    assert values['tgi_request_duration_bucket{le="+Inf"}'] == 1
    bounds = [name for name in values if name.startswith("tgi_request_generated_tokens_bucket")]
    assert len(bounds) == 101
    assert values['tgi_request_generated_tokens_bucket{le="4.0"}'] == 0
    assert values['tgi_request_generated_tokens_bucket{le="8.0"}'] == 1


def test_observations_are_added_together_as_if_one_by_one() -> None:
    one, other = (WebMetrics(Limits(max_input_tokens=200, max_total_tokens=400)) for _ in range(2))
    for value, count in ((0.001, 1), (0.005, 2), (0.02, 3), (1000.0, 1)):
        one.inter_token.observe(value, count)
        for _ in range(count):
            other.inter_token.observe(value)
            other.flush()
    one.flush()
    one.flush()
    assert exposition(one.families()) == exposition(other.families())


def test_prometheus_can_read_it() -> None:
    totals = EngineTotals(None).update([record("a", 3)])
    text = exposition(total_families(totals) + current_families([record("a", 3)], {"m": 1}, {"m": 0.5})).decode()
    families = {family.name for family in text_string_to_metric_families(text)}
    assert {"tgi_batch_inference_count", "tgi_queue_size", "tgi_batch_forward_duration"} <= families


def test_engine_totals_survive_their_workers(tmp_path: Path) -> None:
    for here, there in ((EngineTotals(None),) * 2, (EngineTotals(tmp_path), EngineTotals(tmp_path))):
        here.update([record("a", 3), record("b", 4), record("c")])
        values = samples(exposition(total_families(there.update([record("b", 6)]))))
        assert values['tgi_batch_inference_count{method="decode"}'] == 9
        assert values['tgi_batch_forward_duration_count{method="decode"}'] == 9
        assert values['tgi_batch_forward_duration_sum{method="decode"}'] == 9000
        assert values['tgi_batch_forward_duration_bucket{method="decode",le="+Inf"}'] == 9


def test_current_values_are_of_the_living() -> None:
    records = [record("a", running=2, waiting=1, reserved=50), record("b", running=1)]
    values = samples(exposition(current_families(records, {"m": 3, "o/n": 1}, {"m": 2.5, "o/n": 0.0})))
    assert values["tgi_batch_current_size"] == 3
    assert values["tgi_queue_size"] == 5
    assert values['tgq_queue_jobs{model="m"}'] == 3
    assert values['tgq_queue_jobs{model="o/n"}'] == 1
    assert values['tgq_queue_oldest_seconds{model="m"}'] == 2.5
    assert values['tgq_queue_oldest_seconds{model="o/n"}'] == 0
    assert values["tgi_batch_current_max_tokens"] == 50
    assert values["tgi_batch_max_total_tokens"] == 2000
    assert values['tgq_workers{state="ready"}'] == 2
    assert values['tgq_workers{state="draining"}'] == 0


def test_a_client_s_counts_are_added_once() -> None:
    metrics, counters = WebMetrics(Limits(max_input_tokens=200, max_total_tokens=400)), ClientCounters()
    counters.resent["worker_lost"] += 2
    counters.stale_frames = 5
    metrics.follow(counters)
    metrics.follow(counters)
    counters.resent["worker_lost"] += 1
    counters.resent["stalled"] += 1
    counters.given_up = 1
    metrics.follow(counters)
    values = samples(exposition(metrics.families()))
    assert values['tgq_failovers_total{cause="worker_lost"}'] == 3
    assert values['tgq_failovers_total{cause="stalled"}'] == 1
    assert values["tgq_requests_given_up_total"] == 1
    assert values["tgq_stale_frames_total"] == 5
