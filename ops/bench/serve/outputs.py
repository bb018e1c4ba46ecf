"""Where results go besides standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ops.batches.input import BadInput
from ops.bench.serve.plan import Plan
from ops.bench.serve.results import Results


@dataclass(frozen=True)
class Outputs:
    """Files that were asked for. Plots need matplotlib, which this service does not need otherwise."""

    json: Path | None = None
    plots: Path | None = None
    """A folder."""
    report: Path | None = None

    def check(self) -> None:
        """Find out before anything is measured.

        Raises:
            BadInput: one of them could not be written afterwards.
        """
        for option, file in (("--json", self.json), ("--report", self.report)):
            if file is not None and file.is_dir():
                raise BadInput(f"{option} {file}: it is a folder")
            if file is not None and not file.parent.is_dir():
                raise BadInput(f"{option} {file}: there is no folder {file.parent}")
        if self.plots is not None:
            if not can_draw():
                raise BadInput("--plots needs matplotlib: pip install matplotlib")
            try:
                self.plots.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BadInput(f"--plots {self.plots}: {error.strerror}") from None
        if self.report is not None and not can_draw():
            print("tgq: without matplotlib the report has no plots: pip install matplotlib", file=sys.stderr)

    def write(self, results: Results, plan: Plan, document: Mapping[str, Any]) -> None:
        """
        Args:
            document: the results in the form for programs.

        Raises:
            OSError: a file cannot be written.
        """
        if self.json is not None:
            self.json.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        if self.plots is not None:
            from ops.bench.serve.plots import draw_files

            draw_files(self.plots, results)
        if self.report is not None:
            from ops.bench.serve.report import report

            page = report(results, plan, document, with_plots=can_draw())
            self.report.write_text(page, encoding="utf-8")


def can_draw() -> bool:
    return find_spec("matplotlib") is not None
