"""Clients at work, and the undisturbed run that says what is right."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from ops.chaos.client import Ask, Balancer, Manner
from ops.chaos.http_stream import Address
from ops.chaos.questions import Question
from ops.chaos.verdict import said

REFERENCE_SECONDS = 300.0


class BadReference(Exception):
    """The undisturbed service does not say what is right: nothing that follows would mean anything."""


class Load:
    """Asks questions with known answers."""

    def __init__(self, addresses: Sequence[Address], limit: float, rng: Random) -> None:
        """
        Args:
            limit: seconds after which an answer without an end is lost.
        """
        self.asks: list[Ask] = []
        """All so far, those under way included."""
        self._balancer = Balancer(addresses)
        self._limit = limit
        self._rng = rng
        self._expected: dict[Question, list[bytes]] = {}

    async def learn(self, questions: Sequence[Question]) -> None:
        """Ask all questions of the undisturbed service and keep its answers as the right ones.

        Raises:
            BadReference: an answer did not come, or is not what its question had to bring.
        """
        asks = [Ask(question, ()) for question in questions]
        await asyncio.gather(*(ask.run(self._balancer, REFERENCE_SECONDS, self._rng) for ask in asks))
        for ask in asks:
            question = ask.question
            if ask.verdict != "right":
                raise BadReference(f"{question.name}: {ask.verdict} {ask.detail}")
            text = said(ask.heard, streams=question.streams)
            if question.text is not None and text != question.text:
                raise BadReference(f"{question.name}: {text!r} instead of {question.text!r}")
            self._expected[question] = ask.heard

    async def ask(self, question: Question, manner: Manner = "reads") -> None:
        """One client, until its end."""
        ask = Ask(question, self._expected[question], manner, f"chaos-{len(self.asks)}")
        self.asks.append(ask)
        await ask.run(self._balancer, self._limit, self._rng)

    @property
    def in_flight(self) -> int:
        """Streams that have begun and are not at their end."""
        return sum(ask.begun.is_set() and not ask.ended for ask in self.asks)
