"""The windows of all models, following what their live workers can run."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from redis.exceptions import RedisError

from common.live_workers import LiveWorkers
from common.settings import Settings
from workers.batch.window import Window


class Windows:
    """Of one runner."""

    def __init__(self, workers: LiveWorkers, settings: Settings) -> None:
        self._workers = workers
        self._most = settings.batch_window
        self._windows: dict[str, Window] = {}
        self._slots: Counter[str] = Counter()

    def of(self, model: str) -> Window:
        window = self._windows.get(model)
        if window is None:
            window = self._windows[model] = Window(self._most)
            window.aim(self._slots[model])
        return window

    async def look(self) -> None:
        """Ask what the workers can run; while Redis is away all stays as it is."""
        with suppress(RedisError):
            slots: Counter[str] = Counter()
            for record in await self._workers.all_records():
                if record.card is not None and record.state == "ready":
                    slots[record.model] += record.card.max_batch_size
            self._slots = slots
        for model, window in self._windows.items():
            window.aim(self._slots[model])
