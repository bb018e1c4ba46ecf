"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from ops.bench.serve.plan import Plan
from ops.bench.serve.results import Results
from ops.bench.serve.table import failures, latencies, ratios, throughput

_TEMPLATE = Path(__file__).with_name("report.html")


def report(results: Results, plan: Plan, document: Mapping[str, Any], *, with_plots: bool) -> str:
    """
    Args:
        document: the same results as `ops.bench.serve.document` tells them to programs; it goes into the report too.
    """
    # Every value is escaped: names of models, and what servers say of failures, come from elsewhere.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    tables = [("Throughput", throughput(results, plan)), ("Latency (ms)", latencies(results))]
    if results.ratios:
        first, second = results.targets
        tables.insert(0, (f"{second.name} over {first.name}: median (least-most) of the rounds", ratios(results)))
    if any(point.failures for point in results.points):
        tables.append(("Failures", failures(results)))
    return template.render(
        document=document,
        settings=_settings(document["settings"]),
        tables=tables,
        plots=_plots(results) if with_plots else [],
    )


def _settings(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Those that were set, in words."""
    shown = []
    for name, value in settings.items():
        if value in (None, False, {}):
            continue
        words = ", ".join(f"{key} {entry:g}" for key, entry in value.items()) if name == "goodput_ms" else str(value)
        shown.append((name.replace("_", " "), words))
    return shown


def _plots(results: Results) -> list[dict[str, str]]:
    from ops.bench.serve.plots import DARK, LIGHT, plots, svg

    return [
        {
            "words": plot.words,
            "light": base64.b64encode(svg(plot, results, LIGHT)).decode(),
            "dark": base64.b64encode(svg(plot, results, DARK)).decode(),
        }
        for plot in plots(results)
    ]
