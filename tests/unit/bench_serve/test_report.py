"""The report: self-contained, and nothing that a server says is taken for HTML."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ops.bench.serve.apis import APIS, Shape
from ops.bench.serve.document import document
from ops.bench.serve.figures import Run
from ops.bench.serve.notes import notes
from ops.bench.serve.plan import Load, Plan, loads
from ops.bench.serve.plots import draw_files, plots
from ops.bench.serve.prompts import FilePrompts, Prompt
from ops.bench.serve.report import report
from ops.bench.serve.results import Results, results
from ops.bench.serve.sweep import Sweep
from ops.bench.serve.table import latencies, ratios, throughput
from ops.bench.serve.target import Target, targets

EVIL = "<script>alert(1)</script>$\\frac$"
API = APIS["openai-chat"]


def plan(points: tuple[Load, ...], rounds: int) -> Plan:
    return Plan(
        loads=points,
        num_prompts=20,
        duration=None,
        warmup=0,
        rounds=rounds,
        burstiness=1,
        max_concurrency=None,
        output_len=8,
        timeout=5,
        seed=0,
        goals={"ttft": 0.1},
    )


def run(pace: float, *, failed: int = 0, offered: float | None = None) -> Run:
    """A run of 20 requests whose tokens take `pace` seconds each."""
    done = 20 - failed
    random = np.random.default_rng(1)
    return Run(
        seconds=pace * 100,
        sent=20,
        completed=done,
        failures=Counter({"HTTP 500": failed} if failed else {}),
        reasons={"HTTP 500": EVIL} if failed else {},
        unfinished=0,
        prompt_tokens=done * 10,
        output_tokens=done * 8,
        samples={name: random.uniform(pace, 2 * pace, done) for name in ("ttft", "tpot", "itl", "e2e")},
        good=done // 2,
        peak=4,
        offered=offered,
        late=np.array([0.0, 0.5] if offered else []),
        loop_lag=np.array([0.001]),
        cpu_share=0.1,
        counted=done,
        events=done * 4,
        short=1,
        growth=3.0,
    )


def two_servers(failed: int = 3) -> tuple[Results, Plan, Sweep, list[Target]]:
    points = loads(None, "1,4")
    servers = [
        replace(t, model=EVIL) for t in targets(["127.0.0.1:1", "127.0.0.1:2"], API, headers={}, keys=["hidden"])
    ]
    sweep = Sweep(prompts_used=50)
    for load in points:
        for index, target in enumerate(servers):
            paces = (0.01, 0.02) if index == 0 else (0.02, 0.06)
            sweep.runs[load, target] = {n: run(pace, failed=failed * index) for n, pace in enumerate(paces)}
    return results(sweep, points, servers), plan(points, 2), sweep, servers


def test_ratios_are_of_the_same_round() -> None:
    found, what, *_ = two_servers(failed=0)
    (load, first), *_ = found.ratios.items()
    pace = next(ratio for ratio in first if ratio.name == "TPOT p50")
    assert pace.rounds == pytest.approx((2, 3))
    assert [pace.low, pace.high, pace.median] == pytest.approx([2, 3, 2.5])
    rows = ratios(found)
    assert rows[1][0] == str(load)
    assert "2.50 (2.00-3.00)" in rows[1]
    for table in (rows, latencies(found), throughput(found, what)):
        assert len({len(row) for row in table}) == 1


def test_the_report_needs_nothing_and_escapes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    found, what, sweep, _ = two_servers()
    some = plots(found)[:2]
    monkeypatch.setattr("ops.bench.serve.plots.plots", lambda results: some)
    prompts = FilePrompts([Prompt(text="x")], EVIL, 0)
    told = document(found, what, API, Shape(), prompts, notes(found, sweep, what, prompts))
    page = report(found, what, told, with_plots=True)
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 4
    assert "hidden" not in page
    sources = re.findall(r"(?:src|href)=\"([^\"]*)", page)
    assert len(sources) == 2 * len(some)
    assert {source.partition(";")[0] for source in sources} == {"data:image/svg+xml"}
    assert "url(" not in page
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert "<img" not in report(found, what, told, with_plots=False)


def test_plots_are_written(tmp_path: Path) -> None:
    found, *_ = two_servers()
    draw_files(tmp_path, found)
    names = {path.stem for path in tmp_path.iterdir()}
    assert names == {plot.name for plot in plots(found)} >= {"throughput", "ttft", "ratios", "tradeoff"}
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG")
        width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
        assert (width, height) >= (800, 500)


def test_readers_are_told_what_they_must_know() -> None:
    points = loads("10", None)
    (server,) = targets(["127.0.0.1:1"], API, headers={}, keys=[])
    sweep = Sweep(prompts_used=50)
    sweep.runs[points[0], server] = {0: run(0.1, offered=10.0)}
    found, prompts = results(sweep, points, [server]), FilePrompts([Prompt(text="x")], "file", 0)
    told = notes(found, sweep, plan(points, 1), prompts)
    for words in (
        "This client did not keep up",
        "an event brought 2.00 tokens",
        "1 of 20 answers ended before the length",
        "2.00 of 10.00 requests/s were completed",
        "50 requests were made of 1 prompts",
    ):
        assert any(words in note for note in told), words
    assert "rates" in {plot.name for plot in plots(found)}
    assert throughput(found, plan(points, 1))[1][4] == "10.00"
