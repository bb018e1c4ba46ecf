"""Engine figures that keep counting when the engine process is started anew."""

from __future__ import annotations

from common.wire import EngineStats, Histogram


class StatsTotals:
    """Adds the totals of earlier engine processes to those of the running one."""

    def __init__(self) -> None:
        self._earlier = EngineStats()
        self._running = EngineStats()

    def update(self, stats: EngineStats) -> None:
        self._running = stats

    def engine_lost(self) -> None:
        self._earlier, self._running = self.total(), EngineStats()

    def total(self) -> EngineStats:
        """Totals since the worker started; current values (`running`, `waiting`, ...) of the running engine only."""
        old, new = self._earlier, self._running
        return EngineStats(
            running=new.running,
            waiting=new.waiting,
            reserved_tokens=new.reserved_tokens,
            inference_count=_add_counts(old.inference_count, new.inference_count),
            inference_success=_add_counts(old.inference_success, new.inference_success),
            inference_failure=_add_counts(old.inference_failure, new.inference_failure),
            forward_seconds=_add_histograms(old.forward_seconds, new.forward_seconds),
            inference_seconds=_add_histograms(old.inference_seconds, new.inference_seconds),
            decode_seconds=_add_histograms(old.decode_seconds, new.decode_seconds),
            batch_size=_add(old.batch_size, new.batch_size),
            prompt_tokens=old.prompt_tokens + new.prompt_tokens,
            generated_tokens=old.generated_tokens + new.generated_tokens,
            prefix_asked_tokens=old.prefix_asked_tokens + new.prefix_asked_tokens,
            prefix_hit_tokens=old.prefix_hit_tokens + new.prefix_hit_tokens,
            preemptions=old.preemptions + new.preemptions,
        )


def _add_counts(old: dict[str, int], new: dict[str, int]) -> dict[str, int]:
    return {name: old.get(name, 0) + new.get(name, 0) for name in old | new}


def _add_histograms(old: dict[str, Histogram], new: dict[str, Histogram]) -> dict[str, Histogram]:
    return {name: added for name in old | new if (added := _add(old.get(name), new.get(name))) is not None}


def _add(old: Histogram | None, new: Histogram | None) -> Histogram | None:
    if old is None or new is None:
        return old or new
    return Histogram([a + b for a, b in zip(old.counts, new.counts, strict=True)], old.sum + new.sum)
