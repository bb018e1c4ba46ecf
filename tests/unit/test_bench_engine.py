"""The engine's bench says what it knows, also when a part is missing."""

from __future__ import annotations

import io

from rich.console import Console

from ops.bench import engine
from ops.bench.engine_limits import Limits
from ops.bench.engine_run import Decode, Report


def _text(reports: dict[str, Report], peers: dict[str, engine.Peers]) -> str:
    console = Console(file=io.StringIO(), width=200)
    engine._print(console, reports, peers)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _row(text: str, title: str) -> list[str]:
    line = next(line for line in text.splitlines() if title in line)
    return [cell.strip() for cell in line.split("│")[2:-1]]


def test_a_table_of_an_interrupted_run_has_what_was_measured() -> None:
    report = Report(1, Limits(20e9, 10e9, 1e11, 0.0), 3.0, 10**9)
    report.decode[1] = Decode(0.050, 0.040, 0.030, 17.5)
    text = _text({"fp32, 1 thread": report}, {"1": {"generate": {"1": 12.25}}})
    assert _row(text, "decode 1: ms") == ["50.0  0.75  17.5"]
    assert _row(text, "decode 8: ms") == ["-"]
    assert _row(text, "reads, GB/s") == ["20.0"]
    assert _row(text, "generate, 1 prompts") == ["12.2"]
    assert _row(text, "generate_batch, 64 prompts") == ["-"]
    assert "limit was beaten" not in text


def test_a_limit_that_was_beaten_is_called_none() -> None:
    report = Report(1, Limits(20e9, 10e9, 1e11, 0.0), 3.0, 10**9, decode={1: Decode(0.02, 0.02, 0.03, 50.0)})
    assert "limit was beaten" in _text({"fp32, 1 thread": report}, {})


def test_of_two_tries_the_better_limits_count() -> None:
    better = Limits(1.0, 5.0, 3.0, 0.0).or_better(Limits(2.0, 4.0, 3.5, 0.0))
    assert better == Limits(2.0, 5.0, 3.5, 0.0)
