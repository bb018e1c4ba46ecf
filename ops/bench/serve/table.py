"""Results as tables: drawn on a terminal, in plain columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from ops.bench.serve.figures import LATENCIES, PERCENTILES, Spread
from ops.bench.serve.plan import Plan
from ops.bench.serve.results import Point, Results
from ops.columns import print_columns

Rows = list[list[str]]
"""The first has the headings."""

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
NOTHING = "-"


def print_results(results: Results, plan: Plan, notes: Sequence[str]) -> None:
    """Everything that is known, on standard output."""
    tables = [("throughput", throughput(results, plan)), ("latency in ms", latencies(results))]
    if results.ratios:
        first, second = results.targets
        tables.append((f"{second.name} over {first.name}", ratios(results)))
    if any(point.failures for point in results.points):
        tables.append(("failures", failures(results)))
    console = Console(highlight=False)
    for title, rows in tables:
        if sys.stdout.isatty():
            console.print(_drawn(title, rows))
        else:
            print(f"{title}:")
            print_columns(rows)
        print()
    for note in notes:
        console.print(f"* {note}", markup=False, soft_wrap=not sys.stdout.isatty())


def _drawn(title: str, rows: Rows) -> Table:
    """A server that has all rows is told once: terminals are narrow."""
    place = rows[0].index("server") if "server" in rows[0] else 0
    if place and len(names := {row[place] for row in rows[1:]}) == 1:
        title = f"{title}: {names.pop()}"
        rows = [row[:place] + row[place + 1 :] for row in rows]
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    texts = _texts(rows)
    for index, heading in enumerate(rows[0]):
        justify: JustifyMethod = "left" if index < texts else "right"
        # Where there is too little room, headings have two lines before "concurrency 1" has.
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=heading in ("load", "server"))
    for row in rows[1:]:
        table.add_row(*map(Text, row))  # Text: a server's words are no markup.
    return table


def _texts(rows: Rows) -> int:
    """Leading columns of words."""
    return next(
        (index for index, heading in enumerate(rows[0]) if heading not in ("load", "server", "latency", "kind")), 0
    )


def throughput(results: Results, plan: Plan) -> Rows:
    """A row for each point."""
    heads = ["load", "server", "done", "failed", "offered/s", "requests/s", "output tok/s", "total tok/s", "peak"]
    rows = [heads + (["goodput/s", "good"] if plan.goals else [])]
    for point in results.points:
        row = [
            str(point.load),
            point.target.name,
            str(point.total("completed")),
            str(point.failures.total()),
            NOTHING if point.offered is None else f"{point.offered:.2f}",
            f"{point.request_throughput:.2f}",
            f"{point.output_throughput:.1f}",
            f"{point.total_throughput:.1f}",
            str(point.peak),
        ]
        if plan.goals:
            ended = point.total("completed") + point.failures.total()
            row += [f"{point.goodput:.2f}", f"{point.total('good') / ended:.1%}" if ended else NOTHING]
        rows.append(row)
    return rows


def latencies(results: Results) -> Rows:
    """Rows of mean, percentiles and maximum in milliseconds, for each point and latency."""
    rows = [["load", "server", "latency", "mean", *(f"p{percent}" for percent in PERCENTILES), "max"]]
    for point in results.points:
        spreads: list[tuple[str, Spread | None]] = [(NAMES[name], point.latency(name)) for name in LATENCIES]
        if point.offered is not None:
            spreads.append(("sent late", point.late))
        rows += [[str(point.load), point.target.name, name, *_milliseconds(spread)] for name, spread in spreads]
    return rows


def ratios(results: Results) -> Rows:
    """A row for each load: the median over the rounds, and from the least to the most."""
    names = list(dict.fromkeys(ratio.name for ratios in results.ratios.values() for ratio in ratios))
    rows = [["load", *names]]
    for load, found in results.ratios.items():
        by_name = {ratio.name: f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})" for ratio in found}
        rows.append([str(load), *(by_name.get(name, NOTHING) for name in names)])
    return rows


def failures(results: Results) -> Rows:
    """A row for each kind of failure at a point, with what the first one said."""
    rows = [["load", "server", "kind", "requests", "first one said"]]
    for point in results.points:
        for kind, count in point.failures.most_common():
            rows.append([str(point.load), point.target.name, kind, str(count), _reason(point, kind) or NOTHING])
    return rows


def _reason(point: Point, kind: str) -> str:
    return next((run.reasons[kind] for run in point.runs.values() if kind in run.reasons), "")


def _milliseconds(spread: Spread | None) -> list[str]:
    if spread is None:
        return [NOTHING] * (len(PERCENTILES) + 2)
    return [_shown(value) for value in (spread.mean, *spread.percentiles.values(), spread.most)]


def _shown(seconds: float) -> str:
    milliseconds = seconds * 1000
    return (
        f"{milliseconds:.0f}"
        if milliseconds >= 1000
        else f"{milliseconds:.1f}"
        if milliseconds >= 10
        else f"{milliseconds:.2f}"
    )
