"""Text generation from one's own Python code, through the queue, without HTTP."""

from __future__ import annotations

import json
import secrets
import time
from types import TracebackType
from typing import Any, Self

import msgspec

from common.calls.call import Call
from common.calls.chat import ChatCall
from common.calls.completion import CompletionCall
from common.calls.running import run_call
from common.client.generation import GenerationClient
from common.errors import InvalidRequest
from common.live_workers import LiveWorkers
from common.protocols.json_body import parse_body
from common.protocols.openai_chat_request import ChatRequest
from common.protocols.openai_completion_request import CompletionRequest
from common.redis_clients import async_redis
from common.served_models import Models
from common.settings import Settings
from common.wire import JobClass

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Producer:
    """Text in, text out.

        async with Producer() as tgq:
            text = await tgq.chat("What is the capital of France?", max_tokens=32)
            texts = await asyncio.gather(*(tgq.complete(prompt) for prompt in prompts))

    Requests are those of OpenAI's routes, field for field, with the same rules and defaults. They go straight to the queue:
    no web node is needed, and its limits (`MAX_CONCURRENT_REQUESTS`, API keys) do not count. A worker that is lost
    costs a pause. One producer serves any number of calls at once, in the event loop it was entered in.

    Calls raise `common.errors.TgqError`: `InvalidRequest` for what a route would refuse, `Overloaded` when the queue
    is full, `ServiceUnavailable` without Redis, `DeadlineExceeded` when the time is over. A cancelled call gives up its place at once.
    """

    def __init__(
        self, settings: Settings | None = None, *, job_class: JobClass = "interactive", tenant: str = ""
    ) -> None:
        """
        Args:
            settings: Redis and the model; default: from the environment.
            job_class: `batch` goes behind everything interactive.
            tenant: tenants take turns at the workers.

        Raises:
            ModelNotFound: the model's tokenizer is not on this machine.
        """
        self._settings = settings or Settings()
        self._job_class: JobClass = job_class
        self._tenant = tenant
        self._redis = async_redis(self._settings)
        self._client = GenerationClient(self._settings, self._redis)
        self._workers = LiveWorkers(self._redis, self._client.keys, self._settings)
        self._models = Models(self._settings, self._workers)

    async def __aenter__(self) -> Self:
        await self._client.start()
        await self._workers.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()
        await self._workers.stop()
        self._models.close()
        await self._redis.aclose()

    async def chat(self, messages: str | list[dict[str, Any]], **fields: Any) -> str:
        """The assistant's answer to a conversation, or to one message of a user's; `fields` are the route's."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        answer = await self.answer(CHAT, {"messages": messages, **fields})
        return answer["choices"][0]["message"]["content"] or ""

    async def complete(self, prompt: str, **fields: Any) -> str:
        """How a text goes on; `fields` are the route's."""
        answer = await self.answer(COMPLETIONS, {"prompt": prompt, **fields})
        return str(answer["choices"][0]["text"])

    async def answer(self, endpoint: str, body: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """What a route answers to a body: usage, tool calls, log probabilities, several choices.

        Args:
            endpoint: `/v1/chat/completions` or `/v1/completions`.
            timeout: seconds the whole may take. Default: `request_timeout`.
        """
        seconds = self._settings.request_timeout if timeout is None else timeout
        call = await self._call(endpoint, msgspec.json.encode(body))
        if call.stream:
            raise InvalidRequest("`stream`: answers are given whole here")
        # Batch work may wait for its turn as long as the whole may take.
        deadline = time.time() + seconds if self._job_class == "batch" else None
        answered = await run_call(
            call,
            self._client,
            self._workers,
            seconds,
            job_class=self._job_class,
            tenant=self._tenant,
            deadline=deadline,
        )
        return dict(json.loads(answered.body))

    async def _call(self, endpoint: str, body: bytes) -> Call:
        request_id = secrets.token_hex(16)
        if endpoint == CHAT:
            chat = parse_body(ChatRequest, body)
            return ChatCall(chat, await self._models.find(chat.model), self._settings, request_id)
        if endpoint == COMPLETIONS:
            completion = parse_body(CompletionRequest, body)
            return CompletionCall(completion, await self._models.find(completion.model), self._settings, request_id)
        raise InvalidRequest(f"endpoint: {CHAT} or {COMPLETIONS}, not {endpoint}")
