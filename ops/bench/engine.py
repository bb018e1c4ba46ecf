"""`make bench-engine`: the engine on CPU beside the machine's limits and beside transformers; a table, curves, JSON.

Each part runs in a process of its own, one after the other, and says how far it is; interrupted, the table has what was
measured until then. BENCH_OUT names the JSON file; the curves are written beside it as PNG where matplotlib is installed. Seconds are the processor's where one thread is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer

import msgspec
from rich.console import Console
from rich.table import Table

from common.settings import Settings
from ops.bench.engine_run import PREFILLS, WIDTHS, Report
from workers.engine.model_loader import engine_threads

PRECISIONS = ("fp32", "int8")
SECONDS = 1800
"""One part may take this long: a busy machine stretches it."""
Peers = dict[str, dict[str, float]]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", help="how many to measure with; default: as the engine takes")
    parser.add_argument("--part", choices=[*PRECISIONS, "peers"], help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    threads: list[int] = given.threads or [engine_threads(Settings.of())]
    if given.part is not None:
        _part(given.part, threads[0])
        return 0
    reports: dict[str, Report] = {}
    peers: dict[str, Peers] = {}
    status = 0
    try:
        for count in threads:
            for precision in PRECISIONS:
                name = f"{precision}, {count} thread{'s' * (count > 1)}"
                for line in _lines(precision, count):
                    reports[name] = msgspec.json.decode(line, type=Report)
            for line in _lines("peers", count):
                peers[str(count)] = json.loads(line)
    except KeyboardInterrupt:
        status = 130
    except PartFailed as error:
        print(error, file=sys.stderr)
        status = 1
    _print(Console(), reports, peers)
    if (out := os.environ.get("BENCH_OUT")) and not status:
        _write(Path(out), reports, peers)
    return status


class PartFailed(Exception):
    """What was measured before it is still worth a table."""


def _part(part: str, threads: int) -> None:
    from ops.bench import engine_peers, engine_run

    def say(line: str) -> None:
        print(line, flush=True)

    try:
        if part == "peers":
            engine_peers.child(threads, say)
        else:
            engine_run.child(part, threads, say)
    except KeyboardInterrupt:
        sys.exit(130)


def _lines(part: str, threads: int) -> Iterator[str]:
    """A part's JSON, again with each measurement."""
    command = [sys.executable, "-m", "ops.bench.engine", "--part", part, "--threads", str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        limit = Timer(SECONDS, process.kill)
        limit.start()
        try:
            assert process.stdout is not None
            yield from process.stdout
        finally:
            limit.cancel()
            if sys.exc_info()[0] is not None:
                process.kill()
    if process.returncode:
        raise PartFailed(f"{part} on {threads} threads failed (exit status {process.returncode})")


def _print(console: Console, reports: dict[str, Report], peers: dict[str, Peers]) -> None:
    table = Table("", *reports, title=f"tgq engine, {Settings.model_fields['model_id'].default}")
    for title, of in _rows():
        table.add_row(title, *(of(report) for report in reports.values()))
    for kind in ("generate", "generate_batch"):
        for width in WIDTHS:
            rates = [peers.get(str(report.threads), {}).get(kind, {}).get(str(width)) for report in reports.values()]
            table.add_row(f"transformers {kind}, {width} prompts, tokens/s", *(_figure(rate, ".1f") for rate in rates))
    console.print(table)
    for name, report in reports.items():
        shares = [*(part.share for part in report.decode.values()), *(part.share for part in report.prefill.values())]
        if max(shares, default=0) > 1:
            console.print(f"{name}: a limit was beaten, so it is none: measure again on a quiet machine")


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _rows() -> list[tuple[str, Callable[[Report], str]]]:
    def decode(width: int) -> Callable[[Report], str]:
        def cell(report: Report) -> str:
            part = report.decode.get(width)
            if part is None:
                return "-"
            return f"{part.step_seconds * 1000:.1f}  {part.share:.2f}  {part.tokens_per_second:.1f}"

        return cell

    def prefill(tokens: int) -> Callable[[Report], str]:
        def cell(report: Report) -> str:
            part = report.prefill.get(tokens)
            return "-" if part is None else f"{tokens / part.seconds:.0f}  {part.share:.2f}"

        return cell

    def strict(work: str) -> Callable[[Report], str]:
        return lambda r: _figure(r.strict_cost.get(work), ".2f")

    works = ["decode 1", "decode 16", *(f"prefill {tokens}" for tokens in PREFILLS)]
    return [
        ("reads, GB/s", lambda r: f"{r.limits.read_bytes_per_second / 1e9:.1f}"),
        ("copies, GB/s", lambda r: f"{r.limits.copy_bytes_per_second / 1e9:.1f}"),
        ("float32 product, GFLOP/s", lambda r: f"{r.limits.float_per_second / 1e9:.0f}"),
        ("int8 product, GOP/s", lambda r: f"{r.limits.int8_per_second / 1e9:.0f}"),
        *((f"decode {n}: ms a step, share of the limit, tokens/s with prefill", decode(n)) for n in WIDTHS),
        *((f"prefill {n}: tokens/s, share of the limit", prefill(n)) for n in PREFILLS),
        ("five alternatives, step longer by", lambda r: _figure(r.top_n_overhead, ".1%")),
        ("a grammar, step longer by", lambda r: _figure(r.grammar_overhead, ".1%")),
        ("prefix known, first token sooner by a factor", lambda r: _figure(r.prefix_gain, ".1f")),
        *((f"{work}: times as long as in fast mode", strict(work)) for work in works),
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
