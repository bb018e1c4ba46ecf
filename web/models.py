"""The models this service answers for: the settings' one, and whatever else live workers serve."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from common.errors import ServiceUnavailable, UnknownModel
from common.grammar_checker import GrammarChecker
from common.limits import Limits, resolve_limits
from common.model_files import ModelFiles, ModelNotFound, find_model
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.validation import Validator
from common.wire import ModelCard
from web.live_workers import LiveWorkers

log = structlog.get_logger(__name__)

DEFAULT_NAMES = frozenset(("", "tgi", "dummy"))
"""Names that clients of servers with one model send; they mean the default model."""


@dataclass(frozen=True)
class ServedModel:
    """One model as web processes need it."""

    id: str
    files: ModelFiles
    limits: Limits
    validator: Validator


@dataclass(frozen=True)
class Chosen:
    """What a request's model name stands for."""

    model: ServedModel
    adapter: str | None = None


class Models:
    """Finds models by name; those other than the default are read when they are first asked for."""

    def __init__(self, settings: Settings, workers: LiveWorkers) -> None:
        """
        Raises:
            ModelNotFound: the default model's tokenizer is not there.
            ValueError: the limits do not fit it.
        """
        self._settings = settings
        self._workers = workers
        self._threads = ThreadPoolExecutor(settings.validation_workers, thread_name_prefix="validation")
        self._grammars = GrammarChecker(settings.grammar_timeout)
        files = find_model(settings, weights=False)
        self.default = self._served(files, resolve_limits(settings, files.context_length))
        self._others: dict[str, ServedModel] = {}
        self._loading = asyncio.Lock()

    def close(self) -> None:
        self._grammars.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def find(self, name: str | None) -> Chosen:
        """The model of this name, or the default one with the adapter of this name.

        Raises:
            UnknownModel: no live worker has either.
            ServiceUnavailable: a worker serves it, but its tokenizer is not to be had here.
        """
        if name is None or name in DEFAULT_NAMES or name == self.default.id:
            return Chosen(self.default)
        card = (await self._workers.cards()).get(name)
        if card is not None:
            return Chosen(await self._other(card))
        if name in (await self._workers.adapters() or ()):
            return Chosen(self.default, name)
        if self._settings.accept_any_model:
            return Chosen(self.default)
        raise UnknownModel(name)

    async def _other(self, card: ModelCard) -> ServedModel:
        async with self._loading:
            served = self._others.get(card.model_id)
            if served is None:
                try:
                    served = await asyncio.to_thread(self._read, card)
                except (ModelNotFound, OSError, ValueError) as error:
                    log.warning("model_unreadable", model=card.model_id, error=str(error))
                    raise ServiceUnavailable(f"The tokenizer of `{card.model_id}` is not available here") from error
                self._others[card.model_id] = served
        return served

    def _read(self, card: ModelCard) -> ServedModel:
        files = find_model(
            self._settings.model_copy(update={"model_id": card.model_id, "revision": card.sha}), weights=False
        )
        total = card.max_total_tokens
        inputs = min(self._settings.max_input_tokens or total - 1, total - 1)
        return self._served(files, Limits(max_input_tokens=inputs, max_total_tokens=total))

    def _served(self, files: ModelFiles, limits: Limits) -> ServedModel:
        validator = Validator(self._settings, limits, Tokenizer(files), self._grammars, self._threads)
        return ServedModel(files.model_id, files, limits, validator)
