"""No block is lost or shared wrongly, every job ends once and with its own tokens, whatever happens."""

from __future__ import annotations

import os

import pytest

from common.tokenizer import Tokenizer
from tests.unit.engine.memory_fuzz import MemoryFuzz

STEPS = int(os.environ.get("TGQ_FUZZ_STEPS", "3000"))


@pytest.mark.timeout(max(300, STEPS // 50))
@pytest.mark.parametrize("contiguous", [False, True])
def test_memory_holds(tokenizer: Tokenizer, contiguous: bool) -> None:
    fuzz = MemoryFuzz(tokenizer, contiguous=contiguous, seed=STEPS + contiguous)
    fuzz.run(STEPS)
    report = fuzz.report()
    # It did go through what it is there for.
    for event in ("preemptions", "prefix_hit_tokens", "blocks_copied", "resumed", "cancelled", "failed", "finished"):
        assert report[event] > STEPS // 300, report
    assert (report["shared"] == 0) == contiguous
