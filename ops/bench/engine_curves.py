"""Curves of the engine's bench as one PNG (needs matplotlib)."""

from __future__ import annotations

from pathlib import Path

import matplotlib

from ops.bench.engine_run import PREFILLS, WIDTHS, Report

matplotlib.use("Agg")

from matplotlib import pyplot


def draw(path: Path, reports: dict[str, Report], peers: dict[str, dict[str, dict[str, float]]]) -> None:
    """Tokens per second by width, the share of the limit by width, and prefill."""
    figure, (rates, shares, prefill) = pyplot.subplots(1, 3, figsize=(18, 5.5), layout="constrained")
    for name, report in reports.items():
        rates.plot(WIDTHS, [report.decode[width].tokens_per_second for width in WIDTHS], marker="o", label=name)
        shares.plot(WIDTHS, [report.decode[width].share for width in WIDTHS], marker="o", label=name)
        prefill.plot(list(PREFILLS), [n / report.prefill[n].seconds for n in PREFILLS], marker="o", label=name)
    for threads, kinds in peers.items():
        for kind, by_width in kinds.items():
            label = f"transformers {kind}, {threads} thread{'s' * (threads != '1')}"
            rates.plot(WIDTHS, [by_width[str(width)] for width in WIDTHS], linestyle="--", marker=".", label=label)
    rates.set(title="Answers, prefill included", xlabel="sequences at once", ylabel="tokens per second")
    shares.set(
        title="A decode step beside the machine's limit", xlabel="sequences at once", ylabel="share", ylim=(0, 1.05)
    )
    prefill.set(title="Prefill", xlabel="tokens of the prompt", ylabel="tokens per second")
    for axes, ticks in ((rates, WIDTHS), (shares, WIDTHS), (prefill, tuple(PREFILLS))):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
