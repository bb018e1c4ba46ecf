"""Tells the operator's endpoint that batches have ended: planned in Redis, so that whoever dies, somebody delivers."""

from __future__ import annotations

import asyncio
import time

import httpx2
import msgspec
import redis.asyncio
import structlog

from common.batches.store import BatchStore
from common.errors import UnknownBatch
from common.keys import Keys
from common.settings import Settings
from workers.batch.webhook_event import event_of, secret_bytes, signed_headers

log = structlog.get_logger(__name__)

PAUSES = (5, 60, 300, 1800, 7200, 18_000, 36_000, 36_000)
"""Seconds after each try that failed; then it is given up. About what Standard Webhooks recommends."""
_TIMEOUT_SECONDS = 15.0
_TAKEN_SECONDS = 60
"""A delivery whose process died is made again after so long."""
_ENDS_SECONDS = 2
"""A batch ends soon after its webhook was planned."""
_AT_ONCE = 8
_GONE = 410

# KEYS: webhooks, webhook_tries. ARGV: now, until when it is taken. The one due longest, and how often it was tried with this.
_TAKE = """
local due = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, 1)[1]
if not due then return false end
redis.call('ZADD', KEYS[1], ARGV[2], due)
return {due, redis.call('HINCRBY', KEYS[2], due, 1)}
"""


class Webhooks:
    """Of one process; does nothing where the settings name no endpoint."""

    def __init__(self, redis_client: redis.asyncio.Redis, keys: Keys, store: BatchStore, settings: Settings) -> None:
        """
        Raises:
            ValueError: the secret is not what it says it is.
        """
        self._redis = redis_client
        self._keys = keys
        self._store = store
        self._url = settings.batch_webhook_url
        secret = settings.batch_webhook_secret
        self._secret = b"" if secret is None else secret_bytes(secret.get_secret_value())
        self._take = redis_client.register_script(_TAKE)

    async def plan(self, tenant: str, batch: str) -> None:
        """A batch is about to end; may be said again."""
        if self._url is not None:
            due = {f"{tenant}/{batch}": time.time() + _ENDS_SECONDS}
            await self._redis.zadd(self._keys.webhooks, due, nx=True)

    async def deliver_due(self) -> None:
        """Make the deliveries that are due.

        Raises:
            RedisError: Redis is away.
        """
        if self._url is None:
            return
        async with httpx2.AsyncClient(timeout=_TIMEOUT_SECONDS) as client:
            while any(await asyncio.gather(*(self._deliver_one(client) for _ in range(_AT_ONCE)))):
                pass

    async def _deliver_one(self, client: httpx2.AsyncClient) -> bool:
        """Returns whether one was due."""
        now = time.time()
        taken = await self._take(keys=[self._keys.webhooks, self._keys.webhook_tries], args=[now, now + _TAKEN_SECONDS])
        if taken is None:
            return False
        entry, tries = taken[0].decode(), int(taken[1])
        tenant, _, batch_id = entry.rpartition("/")
        try:
            batch = await self._store.batch(tenant, batch_id)
        except UnknownBatch:
            await self._forget(entry)
            return True
        if batch.open:
            # Its runner died before the end came; the next one will plan this again, which changes nothing.
            await self._redis.hincrby(self._keys.webhook_tries, entry, -1)
            await self._again(entry, _ENDS_SECONDS)
            return True
        event = event_of(batch)
        status = await self._post(client, event.id, msgspec.json.encode(event))
        if 200 <= status < 300:
            await self._forget(entry)
        elif status == _GONE or tries > len(PAUSES):
            log.error("webhook_given_up", batch=batch_id, tries=tries, status=status)
            await self._forget(entry)
        else:
            pause = PAUSES[tries - 1]
            log.warning("webhook_failed", batch=batch_id, tries=tries, status=status, again_in_seconds=pause)
            await self._again(entry, pause)
        return True

    async def _post(self, client: httpx2.AsyncClient, event_id: str, body: bytes) -> int:
        """The status of the answer; 0 when there is none."""
        assert self._url is not None
        headers = signed_headers(event_id, body, self._secret, int(time.time()))
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                response = await client.post(self._url, content=body, headers=headers)
        except (httpx2.HTTPError, OSError, TimeoutError):
            return 0
        return response.status_code

    async def _again(self, entry: str, seconds: float) -> None:
        await self._redis.zadd(self._keys.webhooks, {entry: time.time() + seconds}, xx=True)

    async def _forget(self, entry: str) -> None:
        await self._redis.zrem(self._keys.webhooks, entry)
        await self._redis.hdel(self._keys.webhook_tries, entry)
