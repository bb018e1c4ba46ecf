"""What each API key may have under way and use up, over all web processes of one Redis.

Requests in flight are counted as `common.admission` counts sequences: every call states what its process holds, under a
lease, so that whatever a lost answer, a dead process or a restarted server left behind rights itself.

Tokens a minute are a bucket that drains steadily. A request reserves its prompt and the longest answer it may have;
when it is over, what it really took goes into the bucket and the reservation is gone. At no moment do bucket and
reservations hold more than the limit together.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque

import redis.asyncio
from msgspec import Struct
from redis.exceptions import RedisError

from common.api_keys import ApiKey
from common.background import every, stop_tasks
from common.errors import KeyLimited, ServiceUnavailable
from common.key_limits_script import SCRIPT, TOKENS
from common.keys import Keys
from common.queue_depth import retry_after
from common.settings import Settings

log = logging.getLogger(__name__)


class Usage(Struct, frozen=True):
    """Where a key stands, as of the last word from Redis; None where it has no such limit."""

    requests_limit: int | None
    requests_left: int | None
    tokens_limit: int | None
    tokens_left: int | None
    tokens_reset: float
    """Seconds until all tokens are there again."""


class Share:
    """One request's part of what its key may have."""

    __slots__ = ("_account", "_limits", "_since", "released", "requests", "tokens")

    def __init__(self, limits: KeyLimits, account: _Account) -> None:
        self.requests = 0
        self.tokens = 0
        self.released = False
        self._limits = limits
        self._account = account
        self._since = time.monotonic()

    @property
    def usage(self) -> Usage:
        return self._account.usage

    async def reserve(self, tokens: int) -> None:
        """Take as many tokens as the request may use.

        Raises:
            KeyLimited: so many are not left; `retry_after` says when they should be.
            ServiceUnavailable: Redis is away, known within `redis_timeout`.
        """
        if self._account.key.tokens_per_minute is not None:
            await self._limits._ask(self, self._account, 0, tokens)

    def release(self, spent: int = 0) -> None:
        """Give everything back but the tokens that were really used; never waits, never raises, idempotent."""
        if not self.released:
            self.released = True
            self._limits._give_back(self, self._account, spent, time.monotonic() - self._since)


class _Wish(Struct):
    share: Share
    requests: int
    tokens: int
    answer: asyncio.Future[None]


class _Account:
    """What this process holds of one key."""

    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self.requests = 0
        self.tokens = 0
        self.spent = 0
        """Used up, not yet told."""
        self.wishes: deque[_Wish] = deque()
        self.untold = False
        """Redis has to hear something."""
        self.task: asyncio.Task[None] | None = None
        self.mean_seconds = 1.0
        """How long this key's requests take."""
        self.usage = _usage(key, 0, 0)
        self.tokens_taken = 0
        """Used or reserved, by all processes."""

    @property
    def idle(self) -> bool:
        return not (self.requests or self.tokens or self.untold)


class KeyLimits:
    """One per web process. For each key one call to Redis at a time carries all that has come up since the last."""

    def __init__(self, redis_client: redis.asyncio.Redis, keys: Keys, settings: Settings, process_id: str) -> None:
        self._keys = keys
        self._process = process_id
        self._lease = settings.lease_seconds
        self._timeout = settings.redis_timeout
        self._script = redis_client.register_script(SCRIPT)
        self._accounts: dict[str, _Account] = {}
        self._renewal: asyncio.Task[None] | None = None

    @property
    def held(self) -> dict[str, tuple[int, int]]:
        """Requests and reserved tokens of this process, by the names of the keys."""
        return {name: (account.requests, account.tokens) for name, account in self._accounts.items()}

    def usage(self, key: ApiKey) -> Usage:
        account = self._accounts.get(key.name)
        return account.usage if account is not None else _usage(key, 0, 0)

    async def start(self) -> None:
        self._renewal = asyncio.create_task(every(self._lease / 3, self._renew, "key limits"))

    async def close(self) -> None:
        """Free what this process holds (at once when Redis is there, else when the lease is out)."""
        if self._renewal is not None:
            await stop_tasks([self._renewal])
        accounts = list(self._accounts.values())
        await stop_tasks([account.task for account in accounts if account.task is not None])
        for account in accounts:
            account.requests = account.tokens = 0
            self._refuse(account.wishes, ServiceUnavailable("The service is shutting down"))
        try:
            await asyncio.gather(*(self._call(account, [], account.spent) for account in accounts))
        except (RedisError, OSError, TimeoutError):
            log.warning("Redis is away: what this process's keys hold is free when its lease is out")

    async def enter(self, key: ApiKey) -> Share:
        """One more request of this key, to be released when it is over.

        Raises:
            KeyLimited: the key has as many under way as it may.
            ServiceUnavailable: Redis is away, known within `redis_timeout`.
        """
        account = self._accounts.setdefault(key.name, _Account(key))
        account.key = key  # its limits may have changed
        share = Share(self, account)
        if key.requests_in_flight is not None:
            try:
                await self._ask(share, account, 1, 0)
            except BaseException:
                share.release()
                raise
        return share

    async def _ask(self, share: Share, account: _Account, requests: int, tokens: int) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        account.wishes.append(_Wish(share, requests, tokens, answer))
        self._tell(account)
        try:
            async with asyncio.timeout(self._timeout):
                await answer
        except TimeoutError as error:
            raise ServiceUnavailable("The limits of the key cannot be looked up") from error
        finally:
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # marks it as seen: its caller may have left in this very turn

    def _give_back(self, share: Share, account: _Account, spent: int, seconds: float) -> None:
        account.requests -= share.requests
        account.tokens -= share.tokens
        if account.key.tokens_per_minute is not None:
            account.spent += spent
        if share.requests:
            account.mean_seconds += (seconds - account.mean_seconds) / 8
        if share.requests or share.tokens or account.spent:
            self._tell(account)

    def _tell(self, account: _Account) -> None:
        account.untold = True
        if account.task is None:
            account.task = asyncio.create_task(self._talk(account))

    async def _talk(self, account: _Account) -> None:
        try:
            while account.untold:
                account.untold = False
                wishes = [wish for wish in account.wishes if not wish.answer.done()]
                account.wishes.clear()
                # Not sure to be counted when the call fails: limits protect the service, they are no bill.
                spent, account.spent = account.spent, 0
                try:
                    refusals = await self._call(account, wishes, spent)
                except (RedisError, OSError, TimeoutError) as error:
                    log.warning("key limits cannot reach Redis: %s", type(error).__name__)
                    self._refuse(wishes, ServiceUnavailable("The limits of the key cannot be looked up"))
                    self._refuse(account.wishes, ServiceUnavailable("The limits of the key cannot be looked up"))
                    account.untold = True  # which the next renewal does
                    return
                for wish, refusal in zip(wishes, refusals, strict=True):
                    self._answer(account, wish, refusal)
        finally:
            account.task = None

    async def _call(self, account: _Account, wishes: list[_Wish], spent: int) -> list[int]:
        key = account.key
        limits = [-1 if limit is None else limit for limit in (key.requests_in_flight, key.tokens_per_minute)]
        wanted = [number for wish in wishes for number in (wish.requests, wish.tokens)]
        lease = math.ceil(self._lease * 1000)
        async with asyncio.timeout(self._timeout):
            reply = await self._script(
                keys=[self._keys.key_limits(key.name)],
                args=[self._process, lease, *limits, account.requests, account.tokens, spent, *wanted],
            )
        requests, tokens, *refusals = (int(number) for number in reply)
        account.usage = _usage(key, requests, tokens)
        account.tokens_taken = tokens
        return refusals

    def _answer(self, account: _Account, wish: _Wish, refusal: int) -> None:
        if wish.answer.done() or wish.share.released:
            account.untold = True  # Its caller has left meanwhile; the next call states what is held without it.
        elif not refusal:
            wish.share.requests += wish.requests
            wish.share.tokens += wish.tokens
            account.requests += wish.requests
            account.tokens += wish.tokens
            wish.answer.set_result(None)
        else:
            wish.answer.set_exception(self._limited(account, wish, refusal))

    @staticmethod
    def _limited(account: _Account, wish: _Wish, refusal: int) -> KeyLimited:
        key, usage = account.key, account.usage
        if refusal == TOKENS and key.tokens_per_minute is not None:
            seconds = (account.tokens_taken + wish.tokens - key.tokens_per_minute) * 60 / key.tokens_per_minute
            told = (
                f"Rate limit reached for tokens per minute of this key: limit {key.tokens_per_minute}, "
                f"left {usage.tokens_left}, asked for {wish.tokens} (prompt and longest answer)"
            )
        else:
            seconds = account.mean_seconds / max(account.requests, 1)
            told = f"Rate limit reached for requests in flight of this key: limit {key.requests_in_flight}"
        return KeyLimited(told, retry_after=retry_after(seconds))

    @staticmethod
    def _refuse(wishes: list[_Wish] | deque[_Wish], error: ServiceUnavailable) -> None:
        for wish in wishes:
            if not wish.answer.done():
                wish.answer.set_exception(error)

    async def _renew(self) -> None:
        for account in self._accounts.values():
            if not account.idle:
                self._tell(account)


def _usage(key: ApiKey, requests: int, tokens: int) -> Usage:
    in_flight, per_minute = key.requests_in_flight, key.tokens_per_minute
    return Usage(
        requests_limit=in_flight,
        requests_left=max(in_flight - requests, 0) if in_flight is not None else None,
        tokens_limit=per_minute,
        tokens_left=max(per_minute - tokens, 0) if per_minute is not None else None,
        tokens_reset=tokens * 60 / per_minute if per_minute is not None else 0.0,
    )
