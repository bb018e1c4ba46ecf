"""`make bench-engine`: the engine on CPU beside the machine's limits and beside transformers; a table, curves, JSON.

Each part runs in a process of its own, one after the other. BENCH_OUT names the JSON file; the curves are written beside
it as PNG where matplotlib is installed. `python -m ops.bench.engine --quick` leaves out what runs on several threads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from common.settings import Settings
from ops.bench.engine_run import PREFILLS, WIDTHS, Report

PRECISIONS = ("fp32", "int8")
SECONDS = 1800
"""One part may take this long."""
Peers = dict[str, dict[str, float]]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one thread only")
    parser.add_argument("--part", choices=[*PRECISIONS, "peers"], help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.part is not None:
        _part(given.part, given.threads)
        return 0
    console = Console()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = [1] if given.quick or cores == 1 else [1, cores]
    reports: dict[str, Report] = {}
    peers: dict[str, Peers] = {}
    for count in threads:
        for precision in PRECISIONS:
            name = f"{precision}, {count} thread{'s' * (count > 1)}"
            with console.status(name):
                reports[name] = msgspec.json.decode(_run(precision, count), type=Report)
        with console.status(f"transformers, {count} threads"):
            peers[str(count)] = json.loads(_run("peers", count))
    _print(console, reports, peers)
    if out := os.environ.get("BENCH_OUT"):
        _write(Path(out), reports, peers)
    return 0


def _part(part: str, threads: int) -> None:
    from ops.bench import engine_peers, engine_run

    if part == "peers":
        engine_peers.child(threads, print)
    else:
        engine_run.child(part, threads, print)


def _run(part: str, threads: int) -> str:
    """A part's JSON: the last line it prints."""
    command = [sys.executable, "-m", "ops.bench.engine", "--part", part, "--threads", str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS, stdin=subprocess.DEVNULL
    )
    if result.returncode:
        raise SystemExit(f"{part} on {threads} threads failed:\n{result.stderr[-2000:]}")
    return result.stdout.splitlines()[-1]


def _print(console: Console, reports: dict[str, Report], peers: dict[str, Peers]) -> None:
    table = Table("", *reports, title=f"tgq engine, {Settings.model_fields['model_id'].default}")
    for title, of in _ROWS:
        table.add_row(title, *(of(report) for report in reports.values()))
    for kind in ("generate", "generate_batch"):
        for width in WIDTHS:
            rates = [peers[str(report.threads)][kind][str(width)] for report in reports.values()]
            table.add_row(f"transformers {kind}, {width} prompts, tokens/s", *(f"{rate:.1f}" for rate in rates))
    console.print(table)
    for name, report in reports.items():
        shares = [*(part.share for part in report.decode.values()), *(part.share for part in report.prefill.values())]
        if max(shares) > 1:
            console.print(f"{name}: a limit was beaten, so it is none: measure again on a quiet machine")


_ROWS: list[tuple[str, Any]] = [
    ("reads, GB/s", lambda r: f"{r.limits.read_bytes_per_second / 1e9:.1f}"),
    ("copies, GB/s", lambda r: f"{r.limits.copy_bytes_per_second / 1e9:.1f}"),
    ("float32 product, GFLOP/s", lambda r: f"{r.limits.float_per_second / 1e9:.0f}"),
    ("int8 product, GOP/s", lambda r: f"{r.limits.int8_per_second / 1e9:.0f}"),
    *(
        (
            f"decode {width}: ms a step, share of the limit, tokens/s with prefill",
            lambda r, width=width: (
                f"{r.decode[width].step_seconds * 1000:.1f}  {r.decode[width].share:.2f}  "
                f"{r.decode[width].tokens_per_second:.1f}"
            ),
        )
        for width in WIDTHS
    ),
    *(
        (
            f"prefill {tokens}: tokens/s, share of the limit",
            lambda r, tokens=tokens: f"{tokens / r.prefill[tokens].seconds:.0f}  {r.prefill[tokens].share:.2f}",
        )
        for tokens in PREFILLS
    ),
    ("five alternatives, step longer by", lambda r: f"{r.top_n_overhead:.1%}"),
    ("a grammar, step longer by", lambda r: f"{r.grammar_overhead:.1%}"),
    ("prefix known, first token sooner by a factor", lambda r: f"{r.prefix_gain:.1f}"),
    *(
        (f"{work}: times as long as in fast mode", lambda r, work=work: f"{r.strict_cost[work]:.2f}")
        for work in ("decode 1", "decode 16", *(f"prefill {tokens}" for tokens in PREFILLS))
    ),
    ("loads in, s", lambda r: f"{r.load_seconds:.1f}"),
    ("memory loaded, peak, MB", lambda r: f"{r.resident_bytes / 1e6:.0f}  {r.peak_bytes / 1e6:.0f}"),
]


def _write(out: Path, reports: dict[str, Report], peers: dict[str, Peers]) -> None:
    machine = {"cpus": os.cpu_count(), "processor": platform.processor() or platform.machine()}
    document = {"machine": machine, "engine": reports, "transformers": peers}
    out.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    try:
        from ops.bench import engine_curves
    except ImportError:
        print("no curves: matplotlib is not installed", file=sys.stderr)
        return
    engine_curves.draw(out.with_suffix(".png"), reports, peers)


if __name__ == "__main__":
    sys.exit(main())
