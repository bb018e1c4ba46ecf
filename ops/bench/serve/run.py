"""One benchmark, from its options to its outputs."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from collections.abc import Sequence

import uvloop

from ops.bench.serve.apis import Api, Shape
from ops.bench.serve.document import document
from ops.bench.serve.notes import notes
from ops.bench.serve.outputs import Outputs
from ops.bench.serve.plan import Plan
from ops.bench.serve.prompts import PromptSource
from ops.bench.serve.results import results
from ops.bench.serve.sweep import Sweep, Sweeper, WarmUpFailed
from ops.bench.serve.table import print_results
from ops.bench.serve.target import NoModel, Target
from ops.bench.serve.view import view_for_stderr

DONE, FAILED, WITH_FAILED_REQUESTS, INTERRUPTED = 0, 1, 3, 130


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
        BadInput: an output could not be written, which is found out before anything is sent.
        OSError: one cannot be written all the same; the tables have been printed.
    """
    outputs.check()
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
    outputs.write(found, plan, told)
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
