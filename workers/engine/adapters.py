"""The LoRA adapters of one engine: found at the start, then followed while it serves."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from common.model_files import ModelNotFound, find_adapter
from common.settings import Settings
from workers.engine.attention import ModelRefused
from workers.engine.lora import Adapter
from workers.engine.lora_files import CONFIG, WEIGHTS, AdapterRefused

LOOK_SECONDS = 1.0
"""The folder is looked at this often."""

ReadAdapter = Callable[[str, Path], Adapter]
_State = tuple[tuple[int, int, int], ...]
"""Of an adapter's files: inode, time of the last change and size of each."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look at the folder found."""

    states: dict[str, _State]
    changed: dict[str, Adapter]


class AdapterStore:
    """Newest versions by name. A sequence holds on to the version it began with, so that a swap loses nothing.

    The folder is read in a thread of its own, which sleeps but for one look a second; steps go on meanwhile. A version
    that cannot be read is logged and the one before stays.
    """

    def __init__(self, settings: Settings, read: ReadAdapter, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Load what the settings name and what is in the folder now.

        Args:
            read: makes an adapter of a name and a folder; raises `AdapterRefused`.

        Raises:
            ModelRefused: an adapter named in the settings cannot be used.
        """
        self._read = read
        self._clock = clock
        self._folder = settings.lora_folder
        self._named = _read_named(settings, read)
        self._adapters: dict[str, Adapter] = {}
        self._states: dict[str, _State] = {}
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="adapters")
        self._pending: Future[_Look] | None = None
        self._next_look = 0.0
        if self._folder is not None:
            if not self._folder.is_dir():
                raise ModelRefused(f"TGQ_LORA_FOLDER is {self._folder}, which is no folder")
            self._take(self._look(self._folder, {}))
            self._next_look = clock() + LOOK_SECONDS

    @property
    def names(self) -> list[str]:
        """Adapters that requests may name."""
        return sorted(self._named | self._adapters)

    @property
    def follows(self) -> bool:
        """Whether `refresh` can ever find anything."""
        return self._folder is not None

    def get(self, name: str) -> Adapter | None:
        return self._named.get(name) or self._adapters.get(name)

    def refresh(self) -> bool:
        """Go on following the folder, without waiting for anything.

        Returns:
            Whether `names` has changed.
        """
        if self._folder is None:
            return False
        if self._pending is None:
            if self._clock() >= self._next_look:
                self._pending = self._threads.submit(self._look, self._folder, self._states)
            return False
        if not self._pending.done():
            return False
        look, self._pending = self._pending, None
        self._next_look = self._clock() + LOOK_SECONDS
        names = self.names
        self._take(look.result())
        return self.names != names

    def _look(self, folder: Path, known: dict[str, _State]) -> _Look:
        states = _states(folder)
        changed: dict[str, Adapter] = {}
        for name, state in states.items():
            if known.get(name) == state or name in self._named:
                continue
            try:
                changed[name] = self._read(name, folder / name)
            except AdapterRefused as error:
                log.warning("an adapter is not used: %s", error)
        return _Look(states, changed)

    def _take(self, look: _Look) -> None:
        self._states = look.states
        kept = {name: adapter for name, adapter in self._adapters.items() if name in look.states}
        self._adapters = kept | look.changed


def _read_named(settings: Settings, read: ReadAdapter) -> dict[str, Adapter]:
    """The adapters of LORA_ADAPTERS: `name=folder`, or a hub id that is also its name, `@revision` behind either."""
    adapters: dict[str, Adapter] = {}
    for entry in settings.lora_adapters:
        name, _, source = entry.partition("=")
        source, _, revision = (source or name).partition("@")
        name = name.partition("@")[0]
        try:
            adapters[name] = read(name, find_adapter(settings, source, revision or None))
        except (AdapterRefused, ModelNotFound) as error:
            raise ModelRefused(f"LORA_ADAPTERS: {error}") from error
    return adapters


def _states(folder: Path) -> dict[str, _State]:
    """State of each adapter in a folder; one that is just being changed may be missing."""
    states = {}
    try:
        for child in sorted(folder.iterdir()):
            try:
                files = [(child / name).stat() for name in (CONFIG, WEIGHTS)]
            except OSError:
                continue
            states[child.name] = tuple((file.st_ino, file.st_mtime_ns, file.st_size) for file in files)
    except OSError as error:
        log.warning("the adapter folder cannot be read: %s", error)
    return states
