"""All open batches, of all callers, as the metrics tell of them: no ids, no names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
import redis.asyncio
from msgspec import Struct
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from common.batches.objects import OPEN_STATUSES, BatchStatus, Counts
from common.keys import Keys

MOST_BATCHES = 1000
"""Batches that are looked at; of more, some are not told of."""

# KEYS: batch_turns, held_batches. ARGV: names of a batch and of waiting batches without their ends, how many at most.
_OPEN = """
local most = tonumber(ARGV[3])
local found = {}
local function add(id)
  local object = redis.call('HGET', ARGV[1] .. id, 'object')
  if object and #found < most then found[#found + 1] = object end
end
for _, entry in ipairs(redis.call('ZRANGE', KEYS[2], 0, most - 1)) do add(string.match(entry, '([^/]*)$')) end
for _, tenant in ipairs(redis.call('ZRANGE', KEYS[1], 0, most - 1)) do
  for _, id in ipairs(redis.call('ZRANGE', ARGV[2] .. tenant, 0, most - 1)) do
    if #found >= most then return found end
    add(id)
  end
end
return found
"""


class OpenBatch(Struct, kw_only=True):
    """What is told of one: some fields of its `BatchObject`."""

    status: BatchStatus
    created_at: int
    expires_at: int | None = None
    request_counts: Counts = Counts()


_decode = msgspec.json.Decoder(OpenBatch).decode


async def open_batches(client: redis.asyncio.Redis, keys: Keys) -> list[OpenBatch]:
    """Those that a runner holds, then those that wait for one. One round trip.

    Raises:
        redis.exceptions.RedisError: Redis is away or slow.
    """
    names = (keys.batch_turns, keys.held_batches)
    reply = await client.eval(_OPEN, 2, *names, keys.batch(""), keys.waiting_batches(""), str(MOST_BATCHES))
    return [_decode(raw) for raw in cast("list[bytes]", reply)]


def batch_families(batches: Sequence[OpenBatch], now: float) -> list[Metric]:
    """
    Args:
        now: Unix seconds.
    """
    by_status = GaugeMetricFamily("tgq_batches", "Open batches", labels=["status"])
    for status in sorted(OPEN_STATUSES):
        by_status.add_metric([status], sum(batch.status == status for batch in batches))
    completed = sum(batch.request_counts.completed for batch in batches)
    failed = sum(batch.request_counts.failed for batch in batches)
    total = sum(batch.request_counts.total for batch in batches)
    lines = GaugeMetricFamily("tgq_batch_lines", "Lines of open batches; they leave with their batch", labels=["state"])
    for state, count in (("waiting", total - completed - failed), ("completed", completed), ("failed", failed)):
        lines.add_metric([state], count)
    oldest = max((now - batch.created_at for batch in batches), default=0.0)
    left = [batch.expires_at - now for batch in batches if batch.expires_at is not None]
    families: list[Metric] = [
        by_status,
        lines,
        GaugeMetricFamily("tgq_batch_oldest_seconds", "Age of the oldest open batch; 0 without one", max(oldest, 0.0)),
    ]
    if left:
        name, help_text = "tgq_batch_expires_seconds", "Until the first open batch's time is over; absent without one"
        families.append(GaugeMetricFamily(name, help_text, min(left)))
    return families
