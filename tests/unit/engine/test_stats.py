"""Histograms and totals as Prometheus counts them."""

from __future__ import annotations

import pytest

from common.metrics_buckets import BATCH_SIZE_BUCKETS, DURATION_BUCKETS
from workers.engine.stats import StatsRecorder


def test_bounds_are_tgis() -> None:
    assert len(DURATION_BUCKETS) == 35
    assert DURATION_BUCKETS[:3] == pytest.approx((0.00015, 0.000225, 0.0003375))
    assert DURATION_BUCKETS[-1] == pytest.approx(145.61, abs=0.01)
    assert tuple(map(float, range(1, 1025))) == BATCH_SIZE_BUCKETS


def test_a_bucket_holds_its_bound() -> None:
    recorder = StatsRecorder()
    for size in (1, 2, 2, 1024, 5000):
        recorder.started("decode", size)
    batch_size = recorder.message(running=0, waiting=0, reserved_tokens=0).batch_size
    assert batch_size is not None
    assert len(batch_size.counts) == len(BATCH_SIZE_BUCKETS) + 1
    assert (batch_size.counts[0], batch_size.counts[1], batch_size.counts[1023], batch_size.counts[1024]) == (
        1,
        2,
        1,
        1,
    )
    assert batch_size.sum == 6029


def test_steps_by_method() -> None:
    recorder = StatsRecorder()
    recorder.started("prefill", 3)
    recorder.succeeded("prefill", forward=0.5, decode=0.25, prompt_tokens=7, generated_tokens=2)
    recorder.started("decode", 3)
    recorder.failed("decode")
    stats = recorder.message(running=1, waiting=2, reserved_tokens=3)
    assert stats.inference_count == {"prefill": 1, "decode": 1}
    assert stats.inference_success == {"prefill": 1}
    assert stats.inference_failure == {"decode": 1}
    assert [h["prefill"].sum for h in (stats.forward_seconds, stats.decode_seconds, stats.inference_seconds)] == [
        0.5,
        0.25,
        0.75,
    ]
    assert (stats.prompt_tokens, stats.generated_tokens) == (7, 2)
    assert (stats.running, stats.waiting, stats.reserved_tokens) == (1, 2, 3)


def test_a_message_does_not_change_afterwards() -> None:
    recorder = StatsRecorder()
    recorder.started("decode", 1)
    before = recorder.message(running=0, waiting=0, reserved_tokens=0)
    recorder.started("decode", 1)
    assert before.inference_count == {"decode": 1}
    assert before.batch_size is not None
    assert before.batch_size.counts[0] == 1
