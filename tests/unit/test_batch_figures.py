"""How fast a batch goes, and how that is said."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from common.batches.objects import BatchError, BatchErrors, BatchObject, BatchStatus, BatchUsage, Counts
from ops.batches import following
from ops.batches.client import BatchClient
from ops.batches.figures import Figures, clock
from ops.batches.input import BadInput, first_url, pairs
from ops.batches.outcome import outcome
from ops.batches.progress import LineView, described
from ops.batches.results import errors_beside

BATCH = BatchObject(
    id="batch_1",
    endpoint="/v1/completions",
    input_file_id="file-1",
    completion_window="24h",
    status="in_progress",
    created_at=1000,
    in_progress_at=1010,
    request_counts=Counts(total=1000),
)


def seen(completed: int, failed: int = 0, tokens: int = 0) -> BatchObject:
    counts = Counts(total=1000, completed=completed, failed=failed)
    return msgspec.structs.replace(BATCH, request_counts=counts, usage=BatchUsage.of(0, tokens))


def test_rates_are_those_of_the_last_half_minute() -> None:
    figures = Figures()
    figures.see(seen(0), 0.0)
    assert (figures.tokens_per_second, figures.seconds_left) == (0.0, None)
    figures.see(seen(90, 10, tokens=500), 10.0)
    assert (figures.done, figures.failed, figures.tokens_per_second, figures.seconds_left) == (100, 10, 50.0, 90.0)
    # It stood still at first, and that is long ago.
    for number in range(1, 61):
        figures.see(seen(90 + number, 10, tokens=500 + 100 * number), 100.0 + number)
    assert figures.tokens_per_second == pytest.approx(100.0)
    assert figures.seconds_left == pytest.approx(840.0)


def test_it_is_said_in_words() -> None:
    figures = Figures()
    figures.see(seen(0), 0.0)
    figures.see(seen(98, 2, tokens=1000), 10.0)
    assert described(BATCH, figures) == "in progress, 100 of 1000 lines, 2 failed, 100 tokens/s, 1:30 left"
    assert described(msgspec.structs.replace(BATCH, status="validating"), Figures()) == "validating"
    assert [clock(seconds) for seconds in (0, 59.6, 61, 3725)] == ["0:00", "1:00", "1:01", "1:02:05"]


class Told(BatchClient):
    """Says of its batch what it is given, one after the other."""

    def __init__(self, *statuses: BatchStatus) -> None:
        super().__init__("127.0.0.1:1", None)
        self._statuses = list(statuses)

    def batch(self, batch_id: str) -> BatchObject:
        return msgspec.structs.replace(BATCH, status=self._statuses.pop(0))


@pytest.mark.parametrize(("seconds", "hints"), [(0.0, 1), (3600.0, 0)])
def test_a_batch_that_nobody_takes_is_wondered_at_once(
    seconds: float, hints: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(following, "RUNNER_SECONDS", seconds)
    client = Told("validating", "validating", "in_progress", "completed")
    assert following.follow(client, "batch_1", LineView(), pause=lambda _seconds: None).status == "completed"
    assert capsys.readouterr().err.count("`tgq batch-worker` starts one") == hints


def test_an_outcome_has_the_whole_and_the_errors() -> None:
    done = msgspec.structs.replace(
        seen(990, 10, tokens=5000), status="completed", finalizing_at=1060, completed_at=1061
    )
    assert outcome(done) == [
        "batch_1: completed, 990 of 1000 lines answered, 10 failed, 5000 tokens (100 tokens/s)",
    ]
    errors = BatchErrors(
        [BatchError("empty_file", "Nothing is there"), BatchError("bad", "What?", line=7)]
        + [BatchError("bad", "x")] * 20
    )
    failed = msgspec.structs.replace(BATCH, status="failed", errors=errors, request_counts=Counts())
    lines = outcome(failed)
    assert lines[:3] == ["batch_1: failed, no line was run", "Nothing is there (empty_file)", "line 7: What? (bad)"]
    assert (len(lines), lines[-1]) == (12, "and 12 more")


def test_the_first_line_says_what_for(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps({"url": "/v1/completions"}) + "\nnot looked at\n")
    assert first_url(file) == "/v1/completions"
    for text in ("", "\n", "x\n", "[1]\n", "{}\n", '{"url": 3}\n'):
        file.write_text(text)
        with pytest.raises(BadInput, match=r"in\.jsonl"):
            first_url(file)


def test_pairs() -> None:
    assert pairs(["a=b", "c=d=e", "f="]) == {"a": "b", "c": "d=e", "f": ""}
    for wrong in ("a", "=b"):
        with pytest.raises(BadInput):
            pairs([wrong])


def test_errors_are_beside_the_answers() -> None:
    assert errors_beside(Path("a/out.jsonl")) == Path("a/out.errors.jsonl")
    assert errors_beside(Path("out")) == Path("out.errors.jsonl")
