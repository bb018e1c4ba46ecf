"""The models this service answers for: the settings' one, and whatever else live workers serve."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from common.api_keys import ApiKey
from common.chat_template import ChatTemplate
from common.errors import ServiceUnavailable, UnknownModel
from common.grammar_checker import GrammarChecker
from common.limits import Limits, resolve_limits
from common.live_workers import LiveWorkers
from common.model_files import ModelFiles, find_model
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.validation import Validator
from common.wire import ModelCard

log = structlog.get_logger(__name__)

_READ_SECONDS = 20.0
"""How long a request waits for the files of its model."""

DEFAULT_NAMES = frozenset(("", "tgi", "dummy"))
"""Names that clients of servers with one model send; they mean the default model."""
_ADDRESS = ("http://", "https://")
"""How names begin that mean it too: Hugging Face's JavaScript client sends the address that it was given."""


@dataclass(frozen=True)
class ServedModel:
    """One model as web processes need it."""

    id: str
    """Its name to requests, workers and the queue."""
    files: ModelFiles
    limits: Limits
    validator: Validator
    chat_template: ChatTemplate
    revision: str | None = None

    @property
    def versions(self) -> list[str]:
        """Names of its one version: `1`, and what it is called where it comes from."""
        return list(dict.fromkeys(("1", *filter(None, (self.revision, self.files.sha)))))


@dataclass(frozen=True)
class Chosen:
    """What a request's model name stands for."""

    model: ServedModel
    adapter: str | None = None


@dataclass(frozen=True)
class Listed:
    """A name that requests may give as their model."""

    name: str
    parent: str | None = None
    """The model that an adapter adapts."""


class Models:
    """Finds models by name; those other than the default are read when they are first asked for.

    The default model is always one of them: its requests wait in its queue when no worker is there. So do those of
    another model whose last worker went less than `queue_timeout` ago, for it may come back before they are given up;
    after that there is no such model any more.
    """

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
        limits = resolve_limits(settings, files.context_length)
        self.default = self._served(settings.model_name, files, limits, settings.revision)
        self._others: dict[str, _Other] = {}

    def close(self) -> None:
        self._grammars.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def find(self, name: str | None, key: ApiKey | None = None) -> Chosen:
        """The model of this name, or the model that has an adapter of this name with it.

        Args:
            key: the caller's. Models that it is not for do not exist for it.

        Raises:
            UnknownModel: no live worker has either.
            ServiceUnavailable: a worker serves it, but its tokenizer is not to be had here, or not yet.
        """
        if name is None or name in DEFAULT_NAMES or name == self.default.id or name.startswith(_ADDRESS):
            return self._default(name, key)
        cards = _usable(await self._workers.recent_cards(), key)
        if name in cards:
            return Chosen(await self._named(name, cards))
        for model in self._default_first(cards):
            if name in await self._adapters(model, cards[model]):
                return Chosen(await self._named(model, cards), name)
        if self._settings.accept_any_model or name == self._settings.model_id:
            return self._default(name, key)
        raise UnknownModel(name)

    async def listed(self, key: ApiKey | None = None) -> list[Listed]:
        """The default model and whatever else live workers serve now, each with its adapters.

        Args:
            key: the caller's. Models that it is not for are left out.
        """
        cards = _usable(await self._workers.cards(), key)
        listed = []
        for model in dict.fromkeys([self.default.id, *self._default_first(cards)]):
            if key is not None and not key.may_use(model):
                continue
            listed.append(Listed(model))
            if model in cards:
                listed += [Listed(adapter, model) for adapter in sorted(await self._adapters(model, cards[model]))]
        return listed

    async def queued(self) -> set[str]:
        """The models whose queues may hold jobs."""
        return {self.default.id, *await self._workers.recent_cards()}

    def _default(self, name: str | None, key: ApiKey | None) -> Chosen:
        if key is not None and not key.may_use(self.default.id):
            raise UnknownModel(name or self.default.id)
        return Chosen(self.default)

    def _default_first(self, cards: dict[str, ModelCard]) -> list[str]:
        return sorted(cards, key=lambda model: (model != self.default.id, model))

    async def _adapters(self, model: str, card: ModelCard) -> frozenset[str]:
        adapters = await self._workers.adapters(model)
        return frozenset(card.adapters) if adapters is None else adapters

    async def _named(self, name: str, cards: dict[str, ModelCard]) -> ServedModel:
        if name == self.default.id:
            return self.default
        card = cards[name]
        other = self._others.get(name)
        if other is None or not other.is_of(card):
            other = self._others[name] = _Other(card, asyncio.create_task(asyncio.to_thread(self._read, name, card)))
        # Its files may have to be fetched from the hub; whoever gives up leaves that to the next.
        done, _ = await asyncio.wait([other.reading], timeout=_READ_SECONDS)
        if not done:
            raise ServiceUnavailable(f"The tokenizer of `{name}` is not here yet")
        error = other.reading.exception()  # whatever it is, this model cannot be served, and others can
        if error is None:
            return other.reading.result()
        log.warning("model_unreadable", model=name, error=str(error))
        self._others.pop(name, None)
        raise ServiceUnavailable(f"The tokenizer of `{name}` is not available here") from error

    def _read(self, name: str, card: ModelCard) -> ServedModel:
        files = find_model(
            self._settings.model_copy(update={"model_id": card.model_id, "revision": card.sha}), weights=False
        )
        total = card.max_total_tokens
        inputs = min(self._settings.max_input_tokens or total - 1, total - 1)
        return self._served(name, files, Limits(max_input_tokens=inputs, max_total_tokens=total))

    def _served(self, name: str, files: ModelFiles, limits: Limits, revision: str | None = None) -> ServedModel:
        validator = Validator(self._settings, limits, Tokenizer(files), self._grammars, self._threads)
        return ServedModel(name, files, limits, validator, ChatTemplate.of(files), revision)


def _usable(cards: dict[str, ModelCard], key: ApiKey | None) -> dict[str, ModelCard]:
    return cards if key is None else {model: card for model, card in cards.items() if key.may_use(model)}


@dataclass(frozen=True)
class _Other:
    """A model beside the default one, read once for as long as its workers serve the same."""

    card: ModelCard
    reading: asyncio.Task[ServedModel]

    def is_of(self, card: ModelCard) -> bool:
        return (self.card.model_id, self.card.sha, self.card.max_total_tokens) == (
            card.model_id,
            card.sha,
            card.max_total_tokens,
        )
