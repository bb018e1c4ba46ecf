"""The lines of a batch that name one model: sent in their order, as many at once as its window lets in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import structlog
from msgspec import Raw, Struct
from redis.exceptions import RedisError

from common.api_keys import ApiKey
from common.errors import ServiceUnavailable, UnknownModel
from common.protocols.batch_lines import Response, answer_line, read_line
from common.served_models import Chosen, Models
from workers.batch.answering import Answer, Answering, Question, Terms
from workers.batch.input_file import InputFile
from workers.batch.line_index import LineIndex, Place
from workers.batch.results import Kind, Results
from workers.batch.windows import Windows

log = structlog.get_logger(__name__)

_READ_AT_ONCE = 64
_READ_BYTES = 1 << 20
_PARSED_AT_ONCE = 65_536
"""Bytes; longer bodies are parsed in a thread, so that the others go on meanwhile."""
_AGAIN_SECONDS = 2.0
"""Between two tries to find a model that nobody serves now."""


class Numbered(Struct, frozen=True, gc=False):
    number: int
    text: bytes


class Portions:
    """The lines of places that are not done, read a few at a time; blocks."""

    def __init__(self, places: Iterator[Place], file: InputFile, results: Results) -> None:
        self._places = (place for place in places if place.number not in results.done)
        self._file = file

    def next(self) -> list[Numbered]:
        """Empty at the end."""
        lines: list[Numbered] = []
        read = 0
        for place in self._places:
            lines.append(Numbered(place.number, self._file.read(place.start, place.length)))
            read += place.length
            if len(lines) >= _READ_AT_ONCE or read >= _READ_BYTES:
                break
        return lines


class Lane:
    """Of one batch."""

    def __init__(
        self,
        name: str,
        number: int,
        batch: str,
        terms: Terms,
        key: ApiKey | None,
        *,
        models: Models,
        answering: Answering,
        windows: Windows,
        results: Results,
    ) -> None:
        """
        Args:
            name: of the model, as its lines say it.
            number: in the index.
            batch: its id.
            key: what the batch's owner may use.
        """
        self._name = name
        self._number = number
        self._batch = batch
        self._terms = terms
        self._key = key
        self._models = models
        self._answering = answering
        self._windows = windows
        self._results = results

    async def run(self, index: LineIndex, file: InputFile) -> None:
        """Until every line is done, but for those whose time is over."""
        chosen = await self._find()
        portions = Portions(index.places(self._number), file, self._results)
        async with asyncio.TaskGroup() as lines:
            while portion := await asyncio.to_thread(portions.next):
                for line in portion:
                    await self._send(line, chosen, lines)

    async def _find(self) -> Chosen:
        """A model that was there when the batch was looked through may be gone now, and come back."""
        while True:
            try:
                return await self._models.find(self._name, self._key)
            except (UnknownModel, ServiceUnavailable, RedisError) as error:
                log.warning("batch_waits_for_model", batch=self._batch, reason=type(error).__name__)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _send(self, line: Numbered, chosen: Chosen, lines: asyncio.TaskGroup) -> None:
        request = read_line(line.text, self._terms.endpoint)
        body = bytes(request.body)
        if len(body) > _PARSED_AT_ONCE:
            question = await asyncio.to_thread(self._answering.read, self._terms, body, chosen)
        else:
            question = self._answering.read(self._terms, body, chosen)
        if isinstance(question, Answer):
            await self._done(line.number, request.custom_id, question)
            return
        window = self._windows.of(chosen.model.id)
        await window.enter(question.call.sequences)
        lines.create_task(self._answer(line.number, request.custom_id, question))

    async def _answer(self, number: int, custom_id: str, question: Question) -> None:
        window = self._windows.of(question.call.model.id)
        try:
            answer = await self._answering.answer(self._terms, question, window.crowded)
            if answer is not None:
                window.answered()
                await self._done(number, custom_id, answer)
        finally:
            window.leave(question.call.sequences)

    async def _done(self, number: int, custom_id: str, answer: Answer) -> None:
        response = Response(answer.status, answer.request_id, Raw(answer.body))
        line = answer_line(self._batch, number, custom_id, response)
        kind: Kind = "output" if answer.succeeded else "error"
        await self._results.add(kind, number, line, answer.prompt_tokens, answer.generated_tokens)
