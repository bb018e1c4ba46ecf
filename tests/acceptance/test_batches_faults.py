"""A batch whose runner and workers are killed again and again: every line is answered, once, and rightly.

`TGQ_BATCH_FAULT_LINES=5000` makes it the full one, with five kills of each; `TGQ_BATCH_FAULT_SEED` another one.
"""

from __future__ import annotations

import os
import random

import pytest

from ops.local_service import LocalService
from tests.acceptance.batches import BatchClient, content, done, saying

LINES = int(os.environ.get("TGQ_BATCH_FAULT_LINES", "240"))
SEED = int(os.environ.get("TGQ_BATCH_FAULT_SEED", "1"))
KILLS = 5 if LINES >= 5000 else 2
"""Of a runner, and as many of a worker."""
SETTINGS = {
    "MODEL_ID": "scripted",
    "MAX_BATCH_SIZE": "16",
    "TGQ_BATCH_LEASE_SECONDS": "2",
    "TGQ_HEARTBEAT_SECONDS": "0.2",
    "TGQ_WORKER_DEAD_AFTER": "1.5",
}


def text(number: int) -> str:
    return f"The answer to {number} is {number * number}. "


@pytest.mark.timeout(1200)
def test_nothing_is_lost_and_nothing_comes_twice() -> None:
    chance = random.Random(SEED)
    kills = [(chance.uniform(0.05, 0.9) * LINES, kind) for kind in ("runner", "worker") for _ in range(KILLS)]
    with LocalService(SETTINGS, workers=2, batch_workers=1) as service, BatchClient(service.url) as client:
        # The last lines go on for seconds: it must not be over before the last kill.
        paces = [10] * (LINES - 16) + [100] * 16
        lines = [saying(f"line {number}", text(number), repeat=3, step_ms=pace) for number, pace in enumerate(paces)]
        batch = client.submit(lines)
        struck = []
        for moment, kind in sorted(kills):
            now = client.until(batch, lambda now, moment=moment: done(now) >= moment, 600)  # type: ignore[misc]
            struck.append((kind, now["status"]))
            if kind == "runner":
                service.batch_workers.pop(0).kill()
                service.add_batch_worker()
            else:
                service.workers.pop(chance.randrange(len(service.workers))).kill()
                service.add_worker()
        ended = client.until(batch, seconds=600)
        assert ended["status"] == "completed"
        assert [status for _, status in struck] == ["in_progress"] * 2 * KILLS, "it was over before"
        assert ended["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        assert ended["error_file_id"] is None
        results = client.results(ended["output_file_id"])
        wrong = [number for number in range(LINES) if content(results[f"line {number}"]) != 3 * text(number)]
        assert not wrong
        assert len(results) == LINES
        usages = [line["response"]["body"]["usage"] for line in results.values()]
        assert ended["usage"]["output_tokens"] == sum(usage["completion_tokens"] for usage in usages)
        assert ended["usage"]["input_tokens"] == sum(usage["prompt_tokens"] for usage in usages)
        assert not [path for path in (service.directory / "batches" / "batches").rglob("*") if path.is_file()]
