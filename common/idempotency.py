"""Which call with an idempotency key is under way, and what came of it; known to all web processes through Redis.

One hash for each key: `fingerprint` of the request, `owner` (one call), `wanted_until` (milliseconds: somebody else
waits for it) and in the end `answer`. While the call runs the hash has a short lease, which its owner renews: when the
owner dies, whoever waits takes the call over.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import redis.asyncio
from msgspec import Struct

from common.keys import Keys
from common.settings import Settings
from common.wire import WIRE_VERSION, KeptAnswer, decode_kept_answer, encode_msgpack

LARGEST_ANSWER = 1_000_000
"""Bytes; larger answers are not kept, and a repeated call runs again."""
WAITING_SECONDS = 2.0
"""Somebody who waits says so at least this often."""

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

# ARGV: fingerprint, owner, lease, how long the caller will wait (ms).
_CLAIM = (
    _NOW
    + """
local kept = redis.call('HMGET', KEYS[1], 'fingerprint', 'owner', 'answer')
if not kept[1] or (kept[1] == ARGV[1] and kept[2] == ARGV[2] and not kept[3]) then
  redis.call('HSET', KEYS[1], 'fingerprint', ARGV[1], 'owner', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {'own', ''}
end
if kept[1] ~= ARGV[1] then return {'other', ''} end
if kept[3] then return {'done', kept[3]} end
redis.call('HSET', KEYS[1], 'wanted_until', now + ARGV[4])
return {'running', ''}
"""
)

# ARGV: fingerprint, owner, lease. Also where a restarted server has forgotten the call.
_RENEW = (
    _NOW
    + """
local kept = redis.call('HMGET', KEYS[1], 'owner', 'wanted_until', 'answer')
if kept[3] or (kept[1] and kept[1] ~= ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[1], 'owner', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return kept[2] and tonumber(kept[2]) > now and 1 or 0
"""
)

# ARGV: fingerprint, owner, how long to keep (ms), the answer; an empty one makes the next caller begin anew.
_END = """
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[2] then return end
if ARGV[4] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('HSET', KEYS[1], 'fingerprint', ARGV[1], 'owner', ARGV[2], 'answer', ARGV[4])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
"""


class OneCall(Struct, frozen=True):
    """One attempt at a call."""

    digest: str
    """Of the caller and the key it chose."""
    fingerprint: str
    """Of the request: the same key with another request is a mistake."""
    owner: str
    """This attempt, and no other."""


State = Literal["own", "running", "other"]
"""It is ours to run; somebody runs it; the key stands for another request."""


class CallStore:
    """All methods raise `redis.exceptions.RedisError` when Redis is away, known within `redis_timeout`."""

    def __init__(self, redis_client: redis.asyncio.Redis, keys: Keys, settings: Settings) -> None:
        self._keys = keys
        self._lease = math.ceil(settings.lease_seconds * 1000)
        self._kept = math.ceil(settings.idempotency_seconds * 1000)
        self._claim = redis_client.register_script(_CLAIM)
        self._renew = redis_client.register_script(_RENEW)
        self._end = redis_client.register_script(_END)

    async def claim(self, call: OneCall) -> State | KeptAnswer:
        """Make the call ours, or learn who has it or what came of it."""
        waiting = math.ceil(WAITING_SECONDS * 1000)
        args: list[str | int] = [call.fingerprint, call.owner, self._lease, waiting]
        state, answer = await self._claim(keys=[self._keys.idempotency(call.digest)], args=args)
        if state == b"done":
            try:
                kept = decode_kept_answer(answer)
            except msgspec.MsgspecError:
                kept = None
            if kept is not None and kept.version == WIRE_VERSION:
                return kept
            return "own"  # another release's words: run it, and keep nothing
        return "own" if state == b"own" else "running" if state == b"running" else "other"

    async def renew(self, call: OneCall) -> bool:
        """It still runs. Returns whether others wait for it."""
        args: list[str | int] = [call.fingerprint, call.owner, self._lease]
        return bool(await self._renew(keys=[self._keys.idempotency(call.digest)], args=args))

    async def keep(self, call: OneCall, answer: KeptAnswer) -> None:
        """It has ended well."""
        words = encode_msgpack(answer)
        await self._ended(call, words if len(words) <= LARGEST_ANSWER else b"")

    async def forget(self, call: OneCall) -> None:
        """It has failed: whoever repeats it, or waits for it, runs it anew."""
        await self._ended(call, b"")

    async def _ended(self, call: OneCall, words: bytes) -> None:
        args: list[str | int | bytes] = [call.fingerprint, call.owner, self._kept, words]
        await self._end(keys=[self._keys.idempotency(call.digest)], args=args)
