"""The two ways to bring faults over a load: one kind at a time in rounds, or all mixed for some minutes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from time import monotonic

from ops.chaos.client import Ask, Manner
from ops.chaos.cluster import Cluster, NotWhole
from ops.chaos.faults import RESTART_LIMIT, Fault
from ops.chaos.load import Load
from ops.chaos.questions import Question
from ops.chaos.report import NOTHING, SEVERAL, Report
from ops.chaos.traces import until_no_trace

BEGIN_WITHIN = 0.5
"""Seconds over which the clients of a round come: of a crowd in one moment one worker may take all."""
BEGIN_SECONDS = 60.0
LATEST_STRIKE = 2.5
"""Seconds after the last stream has begun."""
LANES = 2
"""Sequences of faults beside each other in a mixed run."""
BETWEEN_STRIKES = (1.0, 8.0)
MANNERS: tuple[Manner, ...] = ("reads", "leaves", "stalls")
SHARES = (8, 1, 1)
"""Of the clients of a mixed run."""
ECHO_SECONDS = 5.0
"""Streams that begin this long after a fault was undone may still meet its consequences."""

Say = Callable[[str], None]


@dataclass
class Struck:
    """A fault and when it was about; monotonic seconds."""

    fault: Fault
    began: float
    undone: float = float("inf")


class Chaos:
    """Faults over a load on a cluster; everything found goes into the report."""

    def __init__(
        self, cluster: Cluster, load: Load, questions: Sequence[Question], rng: Random, report: Report, say: Say
    ) -> None:
        self._cluster = cluster
        self._load = load
        self._questions = questions
        self._rng = rng
        self._report = report
        self._say = say

    async def rounds(self, faults: Sequence[Fault], count: int) -> None:
        """Each fault `count` times over all questions at once; the cluster is whole again before each round."""
        for fault in faults:
            row = self._report.row(fault.name)
            for number in range(1, count + 1):
                first = len(self._load.asks)
                row.strikes += 1
                row.in_flight += await self._round(fault)
                self._report.add(fault.name, self._load.asks[first:])
                await self._recover(f"after {fault.name}, round {number}")
                self._say(f"{fault.name} {number}/{count}: {dict(row.verdicts)}, longest pause {row.pause:.2f} s")

    async def _round(self, fault: Fault) -> int:
        """One strike over one stream for each question; streams that end while it lasts are followed by others."""
        over = asyncio.Event()
        first = len(self._load.asks)

        async def client(question: Question, manner: Manner, delay: float) -> None:
            await asyncio.sleep(delay)
            while True:
                await self._load.ask(question, manner)
                if over.is_set():
                    return

        clients = []
        for number, question in enumerate(self._questions):
            manner: Manner = fault.manner if fault.manner and number % 2 else "reads"
            delay = self._rng.uniform(0, BEGIN_WITHIN)
            clients.append(asyncio.create_task(client(question, manner, delay)))
        try:
            await asyncio.sleep(BEGIN_WITHIN)
            begun = [asyncio.create_task(ask.begun.wait()) for ask in self._load.asks[first:]]
            await asyncio.wait(begun, timeout=BEGIN_SECONDS)
            await asyncio.sleep(self._rng.uniform(0, LATEST_STRIKE))
            in_flight = self._load.in_flight
            await self._apply(fault, self._rng)
        finally:
            over.set()
            await asyncio.gather(*clients)
        return in_flight

    async def mixed(self, faults: Sequence[Fault], seconds: float) -> None:
        """As many clients as questions all the time, of all manners, while faults strike, up to two at a time."""
        ends_at = monotonic() + seconds
        struck: list[Struck] = []

        async def client(rng: Random) -> None:
            while monotonic() < ends_at:
                await self._load.ask(rng.choice(self._questions), rng.choices(MANNERS, SHARES)[0])

        async def lane(rng: Random) -> None:
            while monotonic() < ends_at:
                await asyncio.sleep(rng.uniform(*BETWEEN_STRIKES))
                await self._strike(rng.choice(faults), rng, struck)

        # Each has a generator of its own: what one does leaves the others' schedule as the seed has it.
        clients = [asyncio.create_task(client(Random(self._rng.random()))) for _ in self._questions]
        try:
            await asyncio.gather(*(lane(Random(self._rng.random())) for _ in range(LANES)))
        finally:
            ends_at = 0.0
            await asyncio.gather(*clients)
        for ask in self._load.asks:
            self._report.add(row_of(ask, struck), [ask])
        await self._recover("at the end")

    async def _strike(self, fault: Fault, rng: Random, struck: list[Struck]) -> None:
        row = self._report.row(fault.name)
        in_flight = self._load.in_flight
        row.strikes += 1
        row.in_flight += in_flight
        one = Struck(fault, monotonic())
        struck.append(one)
        self._say(f"{fault.name}: {in_flight} streams in flight, {len(self._load.asks)} asked so far")
        await self._apply(fault, rng)
        await self._recover(f"after {fault.name}", idle=False)
        one.undone = monotonic()

    async def _apply(self, fault: Fault, rng: Random) -> None:
        try:
            await fault.strike(self._cluster, rng)
        except NotWhole as problem:
            self._report.problems.append(f"during {fault.name}: {problem}")

    async def _recover(self, when: str, *, idle: bool = True) -> None:
        """Wait until the cluster is whole again and, with `idle`, nothing of any request is left."""
        cluster, problems = self._cluster, self._report.problems
        try:
            await cluster.until_whole(RESTART_LIMIT)
            if idle:
                await until_no_trace(cluster)
        except NotWhole as problem:
            problems.append(f"{when}: {problem}")
        problems += [f"{when}: {end}" for end in cluster.exits]
        cluster.exits.clear()


def row_of(ask: Ask, struck: Sequence[Struck]) -> str:
    """The fault an answer is counted under: of those about in its time, one that excuses its end, or the last."""
    met = [one.fault for one in struck if one.began < ask.ended and ask.started < one.undone + ECHO_SECONDS]
    met.sort(key=lambda fault: (fault.errors and ask.verdict == "error") or (fault.cuts and ask.verdict == "cut"))
    if ask.verdict == "error" and len(met) > 1 and not met[-1].errors:
        return SEVERAL
    return met[-1].name if met else NOTHING
