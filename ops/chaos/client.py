"""One client: asks a question until a node takes it, reads the answer in its own manner, and says what came of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from typing import Literal

from ops.chaos.http_stream import Address, ConnectionCut, HttpAnswer, NotConnected, post
from ops.chaos.questions import Question
from ops.chaos.verdict import Verdict, is_typed_error, judge

Manner = Literal["reads", "leaves", "stalls"]
"""reads: all of it; leaves: goes away at some point; stalls: stops reading for some seconds in between."""

RETRY_SECONDS = 0.2
REFUSALS = (429, 503)
"""The node took nothing; every client knows to come again."""
STALL_SECONDS = 3.0
_SMALL_BUFFER = 4096


class Balancer:
    """Names the nodes in turn, as a load balancer in front of them would."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._turns = itertools.cycle(addresses)

    def next(self) -> Address:
        return next(self._turns)


@dataclass(eq=False)
class Ask:
    """One question under way, then what became of it; times are monotonic seconds."""

    question: Question
    expected: Sequence[bytes]
    """Empty: whatever comes is taken for right (an undisturbed run)."""
    manner: Manner = "reads"
    request_id: str = ""
    started: float = 0.0
    ended: float = 0.0
    refusals: int = 0
    """Times that a node refused it or could not be reached."""
    heard: list[bytes] = field(default_factory=list)
    pause: float = 0.0
    """The longest time without an event; for whole answers, the time until they came."""
    verdict: Verdict = "lost"
    detail: str = ""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """The first event arrived, or there will be none."""

    async def run(self, balancer: Balancer, limit: float, rng: Random) -> None:
        """Ask and read to the end; never raises for what the service does.

        Args:
            limit: seconds after which an answer without an end is lost.
        """
        self.started = monotonic()
        ending: Verdict = "lost"
        leaves_after = rng.randrange(max(len(self.expected), 2)) if self.manner == "leaves" else -1
        try:
            async with asyncio.timeout(limit):
                while True:
                    try:
                        ending = await self._once(balancer.next(), leaves_after)
                        break
                    except NotConnected:
                        self.refusals += 1
                        await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            pass
        except ConnectionCut as cut:
            ending, self.detail = "cut", str(cut)
        self.ended = monotonic()
        self.begun.set()
        if not self.expected:
            self.verdict = ending
            return
        self.verdict, found = judge(self.expected, self.heard, ending)
        self.detail = found or self.detail or (f"after {len(self.heard)} events" if ending == "lost" else "")
        self.heard.clear()  # A long run would keep gigabytes of it.

    async def _once(self, address: Address, leaves_after: int) -> Verdict:
        buffer = _SMALL_BUFFER if self.manner == "stalls" else None
        asked = monotonic()
        request = post(
            address, self.question.path, self.question.payload, request_id=self.request_id, receive_buffer=buffer
        )
        async with request as answer:
            if answer.status in REFUSALS:
                raise NotConnected(str(answer.status))
            if answer.status != 200:
                return await self._refused(answer)
            if not self.question.streams:
                self.heard.append(await answer.body())
                self.pause = monotonic() - asked
                return "right"
            last = asked
            async for payload in answer.events():
                self.pause = max(self.pause, monotonic() - last)
                self.heard.append(payload)
                self.begun.set()
                if len(self.heard) - 1 == leaves_after:
                    return "left"
                if self.manner == "stalls" and len(self.heard) == max(len(self.expected) // 4, 1):
                    await asyncio.sleep(STALL_SECONDS)
                last = monotonic()
        return "right"

    async def _refused(self, answer: HttpAnswer) -> Verdict:
        body = await answer.body()
        self.detail = f"{answer.status} {body[:300]!r}"
        return "error" if is_typed_error(body) else "wrong"
