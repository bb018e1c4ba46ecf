"""`make chaos`: load against two web nodes and two workers while everything they stand on fails, every answer checked.

Exit status 1 when an answer was lost, wrong or duplicated, ended as its fault does not excuse, or when something leaked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from rich.console import Console

from common.settings import SCRIPTED_MODEL
from ops.chaos import leaks
from ops.chaos.cluster import Cluster, NotWhole
from ops.chaos.load import BadReference, Load
from ops.chaos.options import parse
from ops.chaos.questions import STREAM, WHOLE, Question, real_question, scripted_question
from ops.chaos.report import Report
from ops.chaos.runs import Chaos

LIMIT_SECONDS = {"scripted": 120.0, "real": 300.0}
SETTINGS = {"scripted": {"MODEL_ID": SCRIPTED_MODEL}, "real": {"TGQ_DEVICE": "cpu", "TGQ_ENGINE_THREADS": "1"}}


async def strike(options: argparse.Namespace, directory: Path, report: Report, console: Console) -> None:
    """The modes `rounds` and `mixed`."""
    rng = Random(options.seed)
    make = scripted_question if options.model == "scripted" else real_question
    questions: list[Question] = []
    for number in range(options.streams):
        whole = options.mode == "mixed" and number % 6 == 5
        questions.append(make(number, rng, path=WHOLE if whole else STREAM))
    async with Cluster(directory, SETTINGS[options.model]) as cluster:
        load = Load(cluster.addresses, LIMIT_SECONDS[options.model], Random(rng.random()))
        console.print(f"seed {options.seed}: asking {len(questions)} questions of the undisturbed service")
        await load.learn(questions)
        chaos = Chaos(cluster, load, questions, rng, report, console.print)
        if options.mode == "mixed":
            await chaos.mixed(options.faults, 60 * options.minutes)
        else:
            await chaos.rounds(options.faults, options.rounds)


async def endure(options: argparse.Namespace, directory: Path, report: Report, console: Console) -> None:
    """The modes `leaks` and `markers`."""
    rng = Random(options.seed)
    async with Cluster(directory, {**SETTINGS["scripted"], "LOG_LEVEL": "warning"}, proxied=False) as cluster:
        if options.mode == "leaks":
            report.samples, crowd = await leaks.run_leaks(
                cluster, requests=options.requests, rng=rng, say=console.print
            )
            table, report.problems = leaks.growth(report.samples)
            console.print(table)
        else:
            crowd = await leaks.run_markers(cluster, requests=options.requests, rng=rng, say=console.print)
    report.row(options.mode).verdicts = crowd.verdicts
    report.details = crowd.details


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    directory = options.logs or Path(tempfile.mkdtemp(prefix="tgq-chaos-"))
    report = Report(options.seed, options.model)
    run = strike if options.mode in ("rounds", "mixed") else endure
    try:
        asyncio.run(run(options, directory, report, console))
    except (NotWhole, BadReference) as problem:
        report.problems.append(str(problem))
    console.print(report.table())
    for line in (*report.problems, *report.details):
        console.print(line, markup=False)
    if options.json:
        options.json.write_text(json.dumps(report.json(), indent=2) + "\n")
    if report.failed:
        console.print(f"failed; the logs are in {directory}")
    elif not options.logs:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
