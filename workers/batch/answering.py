"""One line of a batch, from its request to its answer: what the live routes do, without HTTP and with patience."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable

import structlog
from msgspec import Struct

from common.calls.call import Call
from common.calls.chat import ChatCall
from common.calls.completion import CompletionCall
from common.calls.running import run_call
from common.client.generation import GenerationClient
from common.errors import (
    DeadlineExceeded,
    GenerationFailed,
    IncompleteGeneration,
    Overloaded,
    ServiceUnavailable,
    TgqError,
)
from common.live_workers import LiveWorkers
from common.protocols.dialects import error_form
from common.protocols.json_body import parse_body
from common.protocols.openai_chat_request import ChatRequest
from common.protocols.openai_completion_request import CompletionRequest
from common.served_models import Chosen
from common.settings import Settings

log = structlog.get_logger(__name__)

ROUNDS = 2
"""Times a line is sent whose request came to nothing by no fault of its own, after all that the client tries."""
_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 10.0


class Answer(Struct, frozen=True):
    """What a live route would answer."""

    status: int
    request_id: str
    body: bytes
    prompt_tokens: int = 0
    generated_tokens: int = 0

    @property
    def succeeded(self) -> bool:
        return self.status == 200


class Terms(Struct, frozen=True):
    """What all lines of a batch have in common."""

    endpoint: str
    tenant: str
    weight: float
    expires_at: float
    """Unix seconds."""


class Question(Struct, frozen=True):
    """A line whose request has been read."""

    call: Call
    request_id: str


class Answering:
    """For all batches of one process."""

    def __init__(self, client: GenerationClient, workers: LiveWorkers, settings: Settings) -> None:
        self._client = client
        self._workers = workers
        self._settings = settings

    def read(self, terms: Terms, body: bytes, chosen: Chosen) -> Question | Answer:
        """The request, or the error that answers it."""
        request_id = secrets.token_hex(16)
        try:
            call: Call
            if terms.endpoint == "/v1/chat/completions":
                call = ChatCall(parse_body(ChatRequest, body), chosen, self._settings, request_id)
            else:
                call = CompletionCall(parse_body(CompletionRequest, body), chosen, self._settings, request_id)
        except TgqError as error:
            return self._refused(terms, request_id, error)
        return Question(call, request_id)

    async def answer(self, terms: Terms, question: Question, crowded: Callable[[], None]) -> Answer | None:
        """Have it answered; None when its batch expired first.

        Args:
            crowded: called when the queue is full.
        """
        rounds, pause = 0, _FIRST_PAUSE
        while True:
            try:
                return await self._try(terms, question)
            except (Overloaded, ServiceUnavailable) as error:
                # Nothing was lost, and there is time.
                if isinstance(error, Overloaded):
                    crowded()
                pause = max(pause, min(error.retry_after or 0, _LONGEST_PAUSE))
            except TgqError as error:
                if time.time() >= terms.expires_at:
                    return None
                rounds += 1
                if rounds >= ROUNDS or not _worth_another_try(error):
                    return self._refused(terms, question.request_id, error)
            except Exception as error:  # a line's boundary: its batch goes on, and the log says what happened
                log.exception("batch_line_broke_off", request_id=question.request_id, exc_info=error)
                return self._refused(terms, question.request_id, TgqError("Internal server error"))
            if time.time() + pause >= terms.expires_at:
                return None
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _try(self, terms: Terms, question: Question) -> Answer:
        answered = await run_call(
            question.call,
            self._client,
            self._workers,
            terms.expires_at - time.time(),
            job_class="batch",
            deadline=terms.expires_at,
            tenant=terms.tenant,
            weight=terms.weight,
        )
        return Answer(200, question.request_id, answered.body, answered.prompt_tokens, answered.generated_tokens)

    def _refused(self, terms: Terms, request_id: str, error: TgqError) -> Answer:
        return Answer(error.status, request_id, error_form(terms.endpoint, self._settings)(error))


def _worth_another_try(error: TgqError) -> bool:
    """Whether the request was lost on the way, rather than refused or failed. (Its time is not over: a worker's clock is wrong.)"""
    lost = isinstance(error, (IncompleteGeneration, DeadlineExceeded))
    return lost or (isinstance(error, GenerationFailed) and error.reason is not None)
