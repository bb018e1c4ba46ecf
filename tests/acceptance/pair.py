"""What the shared service of two workers is set to."""

from __future__ import annotations

SLOTS = 3
"""Of each engine: few, so that some streams fill both."""
DEAD_AFTER = 2.0
"""Seconds without a heartbeat after which a worker counts as dead."""
SETTINGS = {
    "MODEL_ID": "scripted",
    "MAX_BATCH_SIZE": str(SLOTS),
    "TGQ_HEARTBEAT_SECONDS": "0.1",
    "TGQ_WORKER_DEAD_AFTER": str(DEAD_AFTER),
    # An engine that a test stops stays so for as long as the test needs.
    "TGQ_ENGINE_FROZEN_TIMEOUT": "30",
}
