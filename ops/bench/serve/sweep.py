"""All loads on all servers, in turn: so that a machine that gets slower does so to all of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from ops.bench.serve.apis import Api, Shape
from ops.bench.serve.arrivals import moments
from ops.bench.serve.client import Client
from ops.bench.serve.figures import Run, measured
from ops.bench.serve.load import LoadRun, Outcome, Request
from ops.bench.serve.plan import Load, LoadKind, Plan
from ops.bench.serve.prompts import PromptSource
from ops.bench.serve.target import Target


class View(Protocol):
    """Where progress goes."""

    def begin(self, what: str, expected: int | None, seconds: float | None) -> None:
        """A run begins, of so many requests and of sending for so many seconds, where these are known."""

    def progress(self, answered: int, failed: int, under_way: int) -> None:
        """How far it is."""

    def end(self, run: Run | None) -> None:
        """It has ended; None: it was a warm-up."""


class WarmUpFailed(Exception):
    """Nothing was measured: a server does not answer as it should. The message is for people."""


@dataclass
class Sweep:
    """What was measured: `runs[load, target][round]`."""

    runs: dict[tuple[Load, Target], dict[int, Run]] = field(default_factory=dict)
    prompts_used: int = 0
    """Prompts that were sent to each server, by their numbers."""
    stopped: bool = False


class Sweeper:
    """Measures loads on servers; what is there when `stop` comes, stays.

    Args:
        stop: ends the sweep early.
    """

    def __init__(
        self, plan: Plan, api: Api, shape: Shape, prompts: PromptSource, targets: Sequence[Target], view: View
    ) -> None:
        self._plan, self._api, self._shape, self._prompts = plan, api, shape, prompts
        self._targets, self._view = targets, view
        self.sweep = Sweep()

    async def run(self, stop: asyncio.Event) -> Sweep:
        """Warm all servers up, then measure.

        Raises:
            WarmUpFailed: no request of a server's warm-up was answered.
        """
        sweep = self.sweep
        for target in self._targets if self._plan.warmup else ():
            await self._warm_up(target, stop)
        sweep.prompts_used = self._plan.warmup
        for number in range(self._plan.rounds):
            for index, load in enumerate(self._plan.loads):
                used = 0
                # Every other round the other way round: the first one meets other caches than the second.
                for target in self._targets if number % 2 == 0 else reversed(self._targets):
                    if stop.is_set():
                        sweep.stopped = True
                        return sweep
                    self._view.begin(self._named(number, load, target), self._plan.num_prompts, self._plan.duration)
                    outcome = await self._measure(target, load, [self._plan.seed, 2, number, index], stop)
                    run = measured(outcome, self._plan.goals)
                    self._view.end(run)
                    used = max(used, outcome.sent)
                    if run.completed or run.failures:
                        sweep.runs.setdefault((load, target), {})[number] = run
                sweep.prompts_used += used
        sweep.stopped = stop.is_set()
        return sweep

    async def _warm_up(self, target: Target, stop: asyncio.Event) -> None:
        count = self._plan.warmup
        self._view.begin(f"{target.name}: warm-up", count, None)
        async with Client(target, self._api, self._plan.timeout) as client:
            load = LoadRun(client, self._requests(target, 0), stop, self._view.progress)
            outcome = await load.at_width(count, count, None)
        self._view.end(None)
        failed = [record for record in outcome.records if record.failure]
        # One that fails may be the prompt's fault.
        if failed and len(failed) == len(outcome.records):
            words = f" ({failed[0].reason})" if failed[0].reason else ""
            raise WarmUpFailed(f"{target.url} does not answer: {failed[0].failure}{words}")

    async def _measure(self, target: Target, load: Load, seed: list[int], stop: asyncio.Event) -> Outcome:
        plan = self._plan
        count, seconds = plan.num_prompts, plan.duration
        requests = self._requests(target, self.sweep.prompts_used)
        async with Client(target, self._api, plan.timeout) as client:
            if load.kind is LoadKind.CONCURRENCY:
                run = LoadRun(client, requests, stop, self._view.progress)
                return await run.at_width(int(load.value), count, seconds)
            if count is not None:
                # Made before the clock starts: at a high rate that alone would make the sender late.
                requests = iter(list(itertools.islice(requests, count)))
            run = LoadRun(client, requests, stop, self._view.progress)
            return await run.at_rate(moments(load.value, plan.burstiness, seed), count, seconds, plan.max_concurrency)

    def _requests(self, target: Target, start: int) -> Iterator[Request]:
        for number in itertools.count(start):
            prompt = self._prompts.prompt(number)
            tokens = prompt.max_tokens or self._plan.output_len
            yield msgspec.json.encode(self._api.body(prompt, tokens, target.model, self._shape)), tokens

    def _named(self, number: int, load: Load, target: Target) -> str:
        turn = f", round {number + 1} of {self._plan.rounds}" if self._plan.rounds > 1 else ""
        return f"{target.name}: {load}{turn}"
