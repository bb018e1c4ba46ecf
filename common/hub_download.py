"""Fetches a model's files from the hub into its cache, and says how far that is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.utils.tqdm import tqdm as hub_bar

Progress = Callable[[int, int], None]
"""Bytes so far, bytes in all."""
TELL_SECONDS = 0.2
"""Progress is told no oftener, and at the end."""


def download(
    source: str,
    *,
    revision: str | None,
    cache: Path | None,
    patterns: Sequence[str],
    ignored: Sequence[str] = (),
    size: int = 0,
    progress: Progress | None = None,
) -> Path:
    """The folder with those files of a hub repository that match one of `patterns`; what the cache has is not fetched again.

    Args:
        size: bytes the files have at least, where that is known: the hub library learns it file by file.
        progress: called from several threads while something is fetched, never at the same time.

    Raises:
        HfHubHTTPError, LocalEntryNotFoundError, OSError: it cannot be fetched.
    """
    return Path(
        snapshot_download(
            source,
            revision=revision,
            cache_dir=cache,
            allow_patterns=list(patterns),
            ignore_patterns=list(ignored),
            tqdm_class=_bar(progress, size),
        )
    )


def _bar(progress: Progress | None, size: int) -> type[Any]:
    """A class in place of the hub library's progress bars: it shows nothing and tells `progress`.

    Of the bars for bytes, one counts what came over the network and one what was written, which differ where files are
    fetched in compressed parts; the one that is ahead is told.
    """
    lock = threading.Lock()
    bars: list[Any] = []
    told, told_at = 0, 0.0

    def tell() -> None:
        nonlocal told, told_at
        with lock:
            ahead = max(bars, key=lambda bar: bar.n)
            done, now = int(ahead.n), time.monotonic()
            total = max(int(ahead.total or 0), size, done)
            if progress is not None and done > told and (now - told_at >= TELL_SECONDS or done == total):
                told, told_at = done, now
                progress(done, total)

    class Bar(hub_bar):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]
            self._counts_bytes = options.get("unit") == "B"
            if self._counts_bytes:
                bars.append(self)

        def update(self, n: float | None = 1) -> None:
            with lock:
                self.n += n or 0
            if self._counts_bytes:
                tell()

        def refresh(self, *_args: Any, **_options: Any) -> None:
            pass

    return Bar
