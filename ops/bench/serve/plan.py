"""What is to be measured: loads, limits, goals. Read from the command line's words."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ops.batches.input import BadInput
from ops.bench.serve.apis import Api

GOALS = ("ttft", "tpot", "e2e")
_OTHER_NAMES = {"e2el": "e2e"}
_MOST_AT_ONCE = 20_000


class LoadKind(StrEnum):
    """How requests come."""

    CONCURRENCY = "concurrency"
    """Closed loop: so many at once, the next one when one has ended."""
    RATE = "request rate"
    """Open loop: so many a second, whether answers come or not."""


@dataclass(frozen=True)
class Load:
    """One point of a sweep."""

    kind: LoadKind
    value: float
    """Requests at once, or requests a second (infinity: all at the start)."""

    def __str__(self) -> str:
        value = "inf" if math.isinf(self.value) else f"{self.value:g}"
        return f"concurrency {value}" if self.kind is LoadKind.CONCURRENCY else f"{value} req/s"


@dataclass(frozen=True)
class Plan:
    """Everything about a run but the servers and the prompts."""

    loads: tuple[Load, ...]
    num_prompts: int | None
    """Requests of one run of a load, and `duration` its seconds: whichever ends first."""
    duration: float | None
    warmup: int
    rounds: int
    burstiness: float
    max_concurrency: int | None
    output_len: int
    """Tokens asked for where the prompt's source does not say."""
    timeout: float
    seed: int
    goals: dict[str, float] = field(default_factory=dict)
    """What a request must keep to count as good, in seconds, by names of `GOALS`."""

    def check(self, api: Api, *, model: str | None, continuous_usage: bool) -> None:
        """
        Raises:
            BadInput: options that cannot be, or not together.
        """
        if not 0 < self.burstiness < math.inf:
            raise BadInput(f"--burstiness {self.burstiness:g}: a number above 0")
        for option, seconds in (("--duration", self.duration), ("--timeout", self.timeout)):
            if seconds is not None and not 0 < seconds < math.inf:
                raise BadInput(f"{option} {seconds:g}: seconds, more than 0")
        if not api.takes_model:
            for option, given in (("--model", model), ("--continuous-usage", continuous_usage)):
                if given:
                    raise BadInput(f"{option}: --api {api.name} has no such thing")
        if self.loads[0].kind is LoadKind.CONCURRENCY:
            if self.max_concurrency is not None:
                raise BadInput("--max-concurrency is for --request-rate; --concurrency bounds by itself")
            if self.burstiness != 1:
                raise BadInput("--burstiness is for --request-rate")
        elif self.num_prompts is None and any(math.isinf(load.value) for load in self.loads):
            raise BadInput("--request-rate inf sends all requests at once: say how many with --num-prompts")


def loads(request_rate: str | None, concurrency: str | None) -> tuple[Load, ...]:
    """The points of a sweep, from one of the two options.

    Raises:
        BadInput: both were given, or one has something else than numbers.
    """
    if request_rate is not None and concurrency is not None:
        raise BadInput("--request-rate and --concurrency: give one of them (--max-concurrency bounds a rate)")
    if request_rate is not None:
        return tuple(Load(LoadKind.RATE, _rate(word)) for word in _words("--request-rate", request_rate))
    words = _words("--concurrency", concurrency if concurrency is not None else "1,4,16")
    return tuple(Load(LoadKind.CONCURRENCY, _width(word)) for word in words)


def goals(given: list[str]) -> dict[str, float]:
    """`ttft:500 tpot:50` (milliseconds) in seconds by name; several may stand in one text.

    Raises:
        BadInput: one of them is no goal.
    """
    found: dict[str, float] = {}
    for word in " ".join(given).replace(",", " ").split():
        name, colon, limit = word.partition(":")
        name = _OTHER_NAMES.get(name, name)
        seconds = _number(limit) / 1000
        if name not in GOALS or not colon or not 0 < seconds < math.inf:
            raise BadInput(f"--goodput {word}: NAME:MILLISECONDS is wanted, with a name of {', '.join(GOALS)}")
        if name in found:
            raise BadInput(f"--goodput: {name} has two limits")
        found[name] = seconds
    return found


def headers(given: list[str]) -> dict[str, str]:
    """`NAME: VALUE` as a dictionary.

    Raises:
        BadInput: it is no header. The value, which may be secret, is not told.
    """
    found = {}
    for line in given:
        name, colon, value = line.partition(":")
        name, value = name.strip(), value.strip()
        good = colon and name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        if not good or not value.isprintable() or not value.isascii():
            raise BadInput(f"--header {name if good else ''}: NAME: VALUE is wanted, in ASCII on one line")
        if name.lower() in ("host", "content-length", "content-type", "transfer-encoding", "connection"):
            raise BadInput(f"--header {name}: this one is not free to choose")
        found[name] = value
    return found


def extra_body(given: str | None) -> dict[str, Any]:
    """A JSON object.

    Raises:
        BadInput: it is none, or has what is not free to choose.
    """
    try:
        value = json.loads(given) if given is not None else {}
    except ValueError as error:
        raise BadInput(f"--extra-body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadInput("--extra-body: a JSON object is wanted")
    for name in value:
        if name in (
            "stream",
            "stream_options",
            "n",
            "best_of",
            "messages",
            "prompt",
            "max_tokens",
            "max_new_tokens",
            "details",
        ):
            raise BadInput(f"--extra-body: {name} is not free to choose")
    return value


def _words(option: str, text: str) -> list[str]:
    words = text.replace(",", " ").split()
    if not words:
        raise BadInput(f"{option}: numbers are wanted, such as 1,4,16")
    if len(set(words)) < len(words):
        raise BadInput(f"{option} {text}: a value is there twice (--rounds measures again)")
    return words


def _rate(word: str) -> float:
    value = _number(word)
    if not value > 0:
        raise BadInput(f"--request-rate {word}: requests a second, more than 0, or inf")
    return value


def _width(word: str) -> float:
    if not word.isdecimal() or not 1 <= int(word) <= _MOST_AT_ONCE:
        raise BadInput(f"--concurrency {word}: a whole number from 1 to {_MOST_AT_ONCE}")
    return float(word)


def _number(word: str) -> float:
    """The number that a word is, or one that no rule allows."""
    try:
        return float(word)
    except ValueError:
        return math.nan
