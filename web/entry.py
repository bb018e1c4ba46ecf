"""What a generation request holds while it is under way: its key's share, and the service's permit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from falcon.asgi import Request

from common.admission import Permit
from common.api_keys import ApiKey
from common.errors import InvalidRequest, Overloaded, ServiceUnavailable, UnknownModel
from common.key_limits import Share
from common.validation import ValidRequest
from web.request_record import RequestRecord
from web.services import Services

LEAVING_SECONDS = 2.0
"""A resumed stream waits so long at most for the place that its last connection had."""
_RETRY_SECONDS = 0.05
LOADING_SECONDS = 5
"""After which to ask again for a model that is being loaded."""


class Entry:
    """Made by `enter`."""

    def __init__(self, request: Request, share: Share | None, permit: Permit) -> None:
        self._request = request
        self._record: RequestRecord = request.context.record
        self._share = share
        self._permit = permit

    async def reserve(self, requests: Sequence[ValidRequest], name: str) -> None:
        """Take the tokens that these may use off what the key has for a minute.

        Args:
            requests: all prompts of the request.
            name: what the caller calls `max_new_tokens`.

        Raises:
            InvalidRequest: the key never has so many.
            KeyLimited: it does not have so many now.
            ServiceUnavailable: Redis is away.
        """
        if self._share is None:
            return
        prompt = sum(len(request.prompt_ids) for request in requests)
        longest = sum(request.parameters.max_new_tokens * request.parameters.children for request in requests)
        limit = self._share.usage.tokens_limit
        if limit is not None and prompt + longest > limit:
            raise InvalidRequest(
                f"prompt tokens + `{name}` must be at most {limit}, which this key may use in a minute, "
                f"given {prompt} and {longest}"
            )
        try:
            await self._share.reserve(prompt + longest)
        finally:
            self._request.context.usage = self._share.usage

    def release(self) -> None:
        """Give everything back but the tokens that were really used; never waits, idempotent."""
        self._permit.release()
        if self._share is not None:
            self._share.release(self._record.spent_tokens)


async def enter(services: Services, request: Request, model: str, sequences: int, *, resumed: bool = False) -> Entry:
    """Let a request in.

    Args:
        resumed: it takes the place of one that is just leaving.

    Raises:
        UnknownModel: its key is not for this model.
        KeyLimited: its key has as many requests under way as it may.
        Overloaded: too many requests are under way.
        ServiceUnavailable: the model is being loaded for the first time, or Redis is away.
    """
    give_up_at = time.monotonic() + (LEAVING_SECONDS if resumed else 0.0)
    while True:
        try:
            return await _enter(services, request, model, sequences)
        except Overloaded:
            if time.monotonic() >= give_up_at:
                raise
        await asyncio.sleep(_RETRY_SECONDS)


async def _enter(services: Services, request: Request, model: str, sequences: int) -> Entry:
    key: ApiKey | None = request.context.key
    if key is not None and not key.may_use(model):
        raise UnknownModel(model)
    if await services.workers.loading(model):
        # Nobody knows yet whether it will load: not to be waited for, as a worker that only went is.
        raise ServiceUnavailable(f"The model `{model}` is being loaded", retry_after=LOADING_SECONDS)
    share = await _share(services, request, key) if key is not None and key.limited else None
    # With a file of keys there may be several, and none of them shuts the others out.
    tenant = request.context.tenant if services.settings.api_keys_file is not None else ""
    try:
        return Entry(request, share, await services.admission.acquire(sequences, tenant))
    except BaseException:
        if share is not None:
            share.release()
        raise


async def _share(services: Services, request: Request, key: ApiKey) -> Share:
    try:
        share = await services.key_limits.enter(key)
    finally:
        request.context.usage = services.key_limits.usage(key)
    return share
