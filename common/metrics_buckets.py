"""Upper bounds of histogram buckets, TGI's own; a last bucket for everything above is implied."""

from __future__ import annotations

DURATION_BUCKETS: tuple[float, ...] = tuple(0.0001 * 1.5**k for k in range(1, 36))
"""Seconds, for every metric whose name ends in `duration`: 0.00015 to 145.6 in geometric steps."""

BATCH_SIZE_BUCKETS: tuple[float, ...] = tuple(float(size) for size in range(1, 1025))
"""Sequences, for `tgi_batch_next_size`."""
