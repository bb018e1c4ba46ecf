"""One benchmark, from its options to its outputs."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import uvloop

from ops.batches.input import BadInput
from ops.bench.serve.apis import Api, Shape
from ops.bench.serve.document import document
from ops.bench.serve.notes import notes
from ops.bench.serve.plan import Plan
from ops.bench.serve.prompts import PromptSource
from ops.bench.serve.results import results
from ops.bench.serve.sweep import Sweep, Sweeper, WarmUpFailed
from ops.bench.serve.table import print_results
from ops.bench.serve.target import NoModel, Target
from ops.bench.serve.view import view_for_stderr

DONE, FAILED, WITH_FAILED_REQUESTS, INTERRUPTED = 0, 1, 3, 130


@dataclass(frozen=True)
class Outputs:
    """Where results go besides standard output."""

    json: Path | None = None
    plots: Path | None = None
    """A folder."""
    report: Path | None = None

    def check(self) -> None:
        """
        Raises:
            BadInput: one of them could not be written when all has been measured.
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


def can_draw() -> bool:
    return find_spec("matplotlib") is not None


def run(
    targets: Sequence[Target],
    api: Api,
    shape: Shape,
    plan: Plan,
    prompts: PromptSource,
    *,
    model: str | None,
    outputs: Outputs,
) -> int:
    """Measure, print, write; returns the exit status.

    Raises:
        BadInput: an output cannot be written.
    """
    outputs.check()
    if outputs.report is not None and not can_draw():
        print("tgq: without matplotlib the report has no plots: pip install matplotlib", file=sys.stderr)
    try:
        targets = [target.with_model(model, api) for target in targets]
        _allow_many_sockets()
        sweeper = Sweeper(plan, api, shape, prompts, targets, view_for_stderr())
        sweep = uvloop.run(_until_signal(sweeper))
    except (NoModel, WarmUpFailed) as error:
        print(f"tgq: {error}", file=sys.stderr)
        return FAILED
    found = results(sweep, plan.loads, targets)
    remarks = notes(found, sweep, plan, prompts)
    if not found.points:
        print("tgq: nothing was measured", file=sys.stderr)
        return INTERRUPTED if sweep.stopped else FAILED
    print_results(found, plan, remarks)
    told = document(found, plan, api, shape, prompts, remarks)
    if outputs.json is not None:
        outputs.json.write_text(json.dumps(told, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    if outputs.plots is not None:
        from ops.bench.serve.plots import draw_files

        draw_files(outputs.plots, found)
    if outputs.report is not None:
        from ops.bench.serve.report import report

        outputs.report.write_text(report(found, plan, told), encoding="utf-8")
    if sweep.stopped:
        return INTERRUPTED
    if not any(point.total("completed") for point in found.points):
        return FAILED
    return WITH_FAILED_REQUESTS if any(point.failures for point in found.points) else DONE


async def _until_signal(sweeper: Sweeper) -> Sweep:
    """The first SIGINT or SIGTERM ends the measuring and keeps what there is; the second one ends the program."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    told = (signal.SIGINT, signal.SIGTERM)

    def first() -> None:
        stop.set()
        for number in told:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in told:
        loop.add_signal_handler(number, first)
    try:
        return await sweeper.run(stop)
    finally:
        for number in told:
            loop.remove_signal_handler(number)


def _allow_many_sockets() -> None:
    """Each request under way has a socket; the usual limit of 1024 is meant for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
