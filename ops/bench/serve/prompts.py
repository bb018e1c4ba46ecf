"""Where prompts come from: a file, or words made up to a length. Each has a number, and the same number is the same prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ops.bench.words import WORDS


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked. Either `text` or `messages` or, for a line in the form of batches, `fields` alone."""

    text: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the request that go as they are."""
    max_tokens: int | None = None
    """How long the answer may be, where the source says it."""


class PromptSource(Protocol):
    """Prompts by number."""

    different: int | None
    """How many different ones there are; None: no end of them."""

    def prompt(self, number: int) -> Prompt:
        """The prompt with this number, from 0."""

    def describe(self) -> str:
        """For the report's head."""


class FilePrompts:
    """Those of a file, in an order drawn by the seed, over and over."""

    def __init__(self, prompts: Sequence[Prompt], name: str, seed: int) -> None:
        self._prompts = prompts
        self._name = name
        self._order = np.random.default_rng([seed, 0]).permutation(len(prompts))
        self.different: int | None = len(prompts)

    def prompt(self, number: int) -> Prompt:
        return self._prompts[int(self._order[number % len(self._prompts)])]

    def describe(self) -> str:
        return f"{len(self._prompts)} prompts from {self._name}"


class MadeUpPrompts:
    """Plain words, about a token each. No two prompts begin alike, so that no cache of prefixes answers.

    Args:
        length: words.
        range_ratio: lengths, and those of the answers, are drawn evenly between (1 - ratio) and (1 + ratio) times the given.
    """

    different: int | None = None

    def __init__(self, length: int, output: int, range_ratio: float, seed: int) -> None:
        self._length, self._output, self._ratio, self._seed = length, output, range_ratio, seed

    def prompt(self, number: int) -> Prompt:
        random = np.random.default_rng([self._seed, 1, number])
        length, output = self._drawn(self._length, random), self._drawn(self._output, random)
        words = [str(number), *(WORDS[index] for index in random.integers(len(WORDS), size=max(length - 1, 0)))]
        return Prompt(text=" ".join(words), max_tokens=output)

    def _drawn(self, length: int, random: np.random.Generator) -> int:
        if not self._ratio:
            return length
        low, high = round(length * (1 - self._ratio)), round(length * (1 + self._ratio))
        return max(1, int(random.integers(low, high, endpoint=True)))

    def describe(self) -> str:
        around = f" give or take {self._ratio:.0%}" if self._ratio else ""
        return f"made up, {self._length} words in, {self._output} tokens out{around}"
