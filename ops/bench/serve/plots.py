"""Plots of a benchmark (needs matplotlib): as PNG files, and as SVG in two colour schemes for the report."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from ops.bench.serve.plan import LoadKind
from ops.bench.serve.results import Point, Results

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

_STYLE = {
    "text.parse_math": False,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.fontsize": 8,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.hashsalt": "tgq",
}
"""Names of servers and models are no mathematics."""


@dataclass(frozen=True)
class Scheme:
    """Colours on one kind of paper."""

    ink: str
    paper: str
    servers: tuple[str, str]
    """Told apart by those who see no red or green, too."""

    @property
    def style(self) -> Any:
        """Matplotlib's parameters."""
        inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
        papers = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
        return _STYLE | dict.fromkeys(inked, self.ink) | dict.fromkeys(papers, self.paper)


LIGHT = Scheme("#1f2328", "#ffffff", ("#0b5fc0", "#c4500c"))
DARK = Scheme("#e6e8eb", "#17191c", ("#79b0ff", "#ffab70"))

_LINES = ("-", "--", ":", "-.")
_PERCENTILES = dict(zip((50, 90, 99), _LINES, strict=False))
"""Those in plots, and their lines."""
_SHOWN = 0.995
"""Share of a distribution that is shown: one straggler would squeeze all others into a corner."""


@dataclass(frozen=True)
class Plot:
    """One plot: the name of its file, what it shows in words, and what draws it."""

    name: str
    words: str
    draw: Callable[[Any, Results, Scheme], None]


def plots(results: Results) -> list[Plot]:
    """Those that have something to show for these results."""
    found = [
        Plot("throughput", "Output tokens a second by load", _throughput),
        Plot("ttft", "Time to first token by load", _latency("ttft", "Time to first token")),
        Plot("tpot", "Time per output token by load", _latency("tpot", "Time per output token")),
        Plot("e2e", "End-to-end latency by load", _latency("e2e", "End-to-end latency")),
        Plot(
            "itl-distribution",
            "Share of inter-token latencies below a time, for each load",
            _distribution("itl", "ITL"),
        ),
        Plot(
            "ttft-distribution",
            "Share of times to first token below a time, for each load",
            _distribution("ttft", "TTFT"),
        ),
    ]
    if len({point.load for point in results.points}) > 1:
        found.append(Plot("tradeoff", "Output tokens a second against the time per output token", _tradeoff))
    if any(point.offered is not None for point in results.points):
        found.append(Plot("rates", "Requests a second that were completed, against those offered", _rates))
    if results.ratios:
        found.append(Plot("ratios", "Figures of the second server over the first one's, by load", _ratios))
    return found


def draw_files(folder: Path, results: Results) -> None:
    """A PNG for each plot."""
    for plot in plots(results):
        _drawn(plot, results, LIGHT, folder / f"{plot.name}.png", "png")


def svg(plot: Plot, results: Results, scheme: Scheme) -> bytes:
    """One plot as SVG; letters are outlines, so that it looks alike everywhere."""
    into = io.BytesIO()
    _drawn(plot, results, scheme, into, "svg")
    return into.getvalue()


def _drawn(plot: Plot, results: Results, scheme: Scheme, to: Path | io.BytesIO, form: str) -> None:
    with matplotlib.rc_context(scheme.style):
        figure, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
        try:
            plot.draw(axes, results, scheme)
            handles, labels = axes.get_legend_handles_labels()
            if len(labels) > 1:
                # Below the plot: inside, it would hide lines.
                columns = 2 if max(map(len, labels)) > 14 else 4
                figure.legend(handles, labels, loc="outside lower center", ncols=columns)
            figure.savefig(to, format=form, dpi=144, metadata={"Date": None} if form == "svg" else None)
        finally:
            pyplot.close(figure)


def _places(results: Results) -> Mapping[Any, int]:
    """Loads stand side by side, whatever their numbers: sweeps double more often than they count."""
    return {load: place for place, load in enumerate(dict.fromkeys(point.load for point in results.points))}


def _load_axis(axes: Any, results: Results) -> Mapping[Any, int]:
    places = _places(results)
    closed = results.points[0].load.kind is LoadKind.CONCURRENCY
    axes.set_xticks(list(places.values()), ["inf" if math.isinf(load.value) else f"{load.value:g}" for load in places])
    axes.set_xlim(-0.35, max(places.values()) + 0.35)
    axes.set_xlabel("requests at once" if closed else "requests per second offered")
    return places


def _each(results: Results, scheme: Scheme) -> list[tuple[str, str, Sequence[Point]]]:
    """Name, colour and points of each server."""
    return [
        (target.name, colour, results.of(target))
        for target, colour in zip(results.targets, scheme.servers, strict=False)
        if results.of(target)
    ]


def _throughput(axes: Any, results: Results, scheme: Scheme) -> None:
    places = _load_axis(axes, results)
    for name, colour, points in _each(results, scheme):
        at = [places[point.load] for point in points]
        axes.plot(at, [point.output_throughput for point in points], marker="o", color=colour, label=name)
        for place, point in zip(at, points, strict=True):
            rates = [run.output_tokens / run.seconds for run in point.runs.values()]
            if len(rates) > 1:
                axes.vlines(place, min(rates), max(rates), color=colour, alpha=0.5, linewidth=4)
    axes.set(title="Output throughput", ylabel="tokens per second")
    axes.set_ylim(bottom=0)


def _latency(name: str, title: str) -> Callable[[Any, Results, Scheme], None]:
    def draw(axes: Any, results: Results, scheme: Scheme) -> None:
        places = _load_axis(axes, results)
        several = len(results.targets) > 1
        for server, colour, points in _each(results, scheme):
            spreads = [(places[point.load], spread) for point in points if (spread := point.latency(name)) is not None]
            for percent, line in _PERCENTILES.items():
                at, values = (
                    [place for place, _ in spreads],
                    [spread.percentiles[percent] * 1000 for _, spread in spreads],
                )
                label = f"{server}, p{percent}" if several else f"p{percent}"
                axes.plot(at, values, line, marker="o", color=colour, label=label)
        axes.set(title=title, ylabel="ms")
        _log_milliseconds(axes.yaxis)

    return draw


def _distribution(name: str, title: str) -> Callable[[Any, Results, Scheme], None]:
    def draw(axes: Any, results: Results, scheme: Scheme) -> None:
        several, most = len(results.targets) > 1, 0.0
        for server, colour, points in _each(results, scheme):
            for place, point in enumerate(points):
                samples = point.samples(name)
                if not len(samples):
                    continue
                # As many steps as the eye can tell.
                shares = np.linspace(0, 1, min(len(samples), 500))
                values = np.quantile(samples, shares) * 1000
                strength = 0.35 + 0.65 * (place + 1) / len(points)
                label = f"{server}, {point.load}" if several else str(point.load)
                axes.plot(values, shares * 100, _LINES[place % len(_LINES)], color=colour, alpha=strength, label=label)
                most = max(most, float(np.quantile(samples, _SHOWN)) * 1000)
        axes.set(title=f"{title} distribution", xlabel=f"ms (up to p{_SHOWN * 100:g})", ylabel="% at or below")
        axes.set_ylim(0, 100)
        axes.set_xlim(0, most or None)

    return draw


def _tradeoff(axes: Any, results: Results, scheme: Scheme) -> None:
    for name, colour, points in _each(results, scheme):
        pairs = [(spread.percentiles[50] * 1000, point) for point in points if (spread := point.latency("tpot"))]
        axes.plot(
            [pace for pace, _ in pairs],
            [point.output_throughput for _, point in pairs],
            marker="o",
            color=colour,
            label=name,
        )
        for pace, point in pairs:
            value = "inf" if math.isinf(point.load.value) else f"{point.load.value:g}"
            axes.annotate(value, (pace, point.output_throughput), textcoords="offset points", xytext=(5, 5), fontsize=8)
    axes.set(title="Throughput against pace", xlabel="time per output token, p50 (ms)", ylabel="tokens per second")
    axes.margins(0.15)


def _rates(axes: Any, results: Results, scheme: Scheme) -> None:
    most = 0.0
    for name, colour, points in _each(results, scheme):
        pairs = [(point.offered, point) for point in points if point.offered is not None]
        offered = [rate for rate, _ in pairs]
        axes.plot(offered, [point.request_throughput for _, point in pairs], marker="o", color=colour, label=name)
        if any(point.total("good") < point.total("completed") for _, point in pairs):
            good = [point.goodput for _, point in pairs]
            axes.plot(offered, good, "--", marker="x", color=colour, label=f"{name}, goodput")
        most = max(most, *offered)
    axes.plot([0, most], [0, most], color=scheme.ink, alpha=0.4, linewidth=1, label="all that was offered")
    axes.set(title="Completed requests", xlabel="requests per second offered", ylabel="requests per second completed")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)


def _ratios(axes: Any, results: Results, scheme: Scheme) -> None:
    places = _load_axis(axes, results)
    names = ("output tokens/s", "TTFT p50", "TPOT p50", "E2E p50")
    colours = (*scheme.servers, scheme.ink, "#7d8590")
    for index, (name, colour) in enumerate(zip(names, colours, strict=True)):
        found = [(places[load], ratio) for load, each in results.ratios.items() for ratio in each if ratio.name == name]
        at = [place + (index - 1.5) * 0.12 for place, _ in found]
        middle = [ratio.median for _, ratio in found]
        below = [ratio.median - ratio.low for _, ratio in found]
        above = [ratio.high - ratio.median for _, ratio in found]
        axes.errorbar(at, middle, yerr=[below, above], fmt="o", color=colour, capsize=3, label=name)
    axes.axhline(1, color=scheme.ink, alpha=0.4, linewidth=1)
    first, second = results.targets
    axes.set(title=f"{second.name} over {first.name}", ylabel="ratio, median and range of the rounds")


def _log_milliseconds(axis: Any) -> None:
    """A logarithmic axis where it spans more than a decade: p50 and p99 on one page."""
    low, high = axis.axes.dataLim.intervaly
    if low > 0 and high > 10 * low:
        axis.axes.set_yscale("log")
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
    else:
        axis.axes.set_ylim(bottom=0)
