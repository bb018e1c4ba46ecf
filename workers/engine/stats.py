"""The engine's running totals, as the worker reports them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Literal

from common.metrics_buckets import BATCH_SIZE_BUCKETS, DURATION_BUCKETS
from common.wire import EngineStats, Histogram

Method = Literal["prefill", "decode"]


class _Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        # A bucket holds values up to its bound, the bound included.
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def message(self) -> Histogram:
        return Histogram(list(self._counts), self._sum)


class StatsRecorder:
    """Counts steps. A step with prompt tokens in it counts as `prefill`, any other as `decode`."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()
        self._success: Counter[str] = Counter()
        self._failure: Counter[str] = Counter()
        self._forward: dict[str, _Histogram] = {}
        self._inference: dict[str, _Histogram] = {}
        self._decode: dict[str, _Histogram] = {}
        self._batch_size = _Histogram(BATCH_SIZE_BUCKETS)
        self._prompt_tokens = 0
        self._generated_tokens = 0

    def started(self, method: Method, sequences: int) -> None:
        """A model call begins."""
        self._count[method] += 1
        self._batch_size.observe(sequences)

    def failed(self, method: Method) -> None:
        """The model call failed."""
        self._failure[method] += 1

    def succeeded(
        self, method: Method, *, forward: float, decode: float, prompt_tokens: int, generated_tokens: int
    ) -> None:
        """A step is done.

        Args:
            method: as given to `started`.
            forward: seconds of the model call.
            decode: seconds of sampling and detokenizing.
            prompt_tokens: computed in this step.
            generated_tokens: sampled in this step.
        """
        self._success[method] += 1
        for histograms, seconds in (
            (self._forward, forward),
            (self._decode, decode),
            (self._inference, forward + decode),
        ):
            histograms.setdefault(method, _Histogram(DURATION_BUCKETS)).observe(seconds)
        self._prompt_tokens += prompt_tokens
        self._generated_tokens += generated_tokens

    def message(self, *, running: int, waiting: int, reserved_tokens: int) -> EngineStats:
        """The totals so far beside the current values."""
        return EngineStats(
            running=running,
            waiting=waiting,
            reserved_tokens=reserved_tokens,
            inference_count=dict(self._count),
            inference_success=dict(self._success),
            inference_failure=dict(self._failure),
            forward_seconds=_messages(self._forward),
            inference_seconds=_messages(self._inference),
            decode_seconds=_messages(self._decode),
            batch_size=self._batch_size.message(),
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
        )


def _messages(histograms: dict[str, _Histogram]) -> dict[str, Histogram]:
    return {method: histogram.message() for method, histogram in histograms.items()}
