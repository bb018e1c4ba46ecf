"""Answers of resumable streams while they are made and for a while after, known to all web processes through Redis.

For each stream a hash (`stream`: what another process needs to go on, `owner`: whose connection it is) and a list of its
`Tokens`, in the portions in which they are folded to events. The owner appends tokens before it sends them, so that
whatever a client may have seen is here. Whoever claims the stream becomes its owner; what the one before says is refused.
Beside them is a mark that outlives both by `STREAM_KNOWN_SECONDS`: who comes too late is told so.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import redis.asyncio
from msgspec import Struct

from common.keys import ATTEMPTS_SECONDS, STREAM_KNOWN_SECONDS, Keys
from common.settings import Settings
from common.wire import (
    WIRE_VERSION,
    StoredStream,
    Tokens,
    decode_stored_stream,
    decode_tokens,
    encode_msgpack,
)

ATTEMPTS_EACH = 1000
"""Each owner numbers its attempts from another thousand on, so that no two owners' are the same."""

Appended = Literal["stored", "taken", "missing"]
"""`taken`: somebody else has the stream. `missing`: it was forgotten, or Redis lost its data; if it is to go on, all tokens
must be appended again."""

# KEYS of all scripts begin with: stream, tokens, mark.
_KEEP = f"""
local function keep(milliseconds)
  redis.call('PEXPIRE', KEYS[1], milliseconds)
  redis.call('PEXPIRE', KEYS[2], milliseconds)
  redis.call('SET', KEYS[3], '', 'PX', string.format('%d', milliseconds + {STREAM_KNOWN_SECONDS * 1000}))
end
"""

# ARGV: owner, stream, milliseconds to keep, portions of tokens before these, whether to make a
# stream that is not there ('' for no), then the portions.
# A repeated call, whose answer was lost, writes the same in the same place.
_APPEND = f"""{_KEEP}
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[1] then return 'taken' end
local before, there = tonumber(ARGV[4]), redis.call('LLEN', KEYS[2])
if there < before or (not owner and ARGV[5] == '') then return 'missing' end
if before == 0 then redis.call('DEL', KEYS[2]) elseif there > before then redis.call('LTRIM', KEYS[2], 0, before - 1) end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'stream', ARGV[2])
for i = 6, #ARGV do redis.call('RPUSH', KEYS[2], ARGV[i]) end
keep(ARGV[3])
return 'stored'
"""

# ARGV: owner, milliseconds to keep.
_RENEW = f"""{_KEEP}
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return end
keep(ARGV[2])
"""

# KEYS: also the job's newest attempt and its mark of cancellation, which an owner that stopped may have left.
# ARGV: owner, stream, milliseconds to keep, attempts each, seconds the attempt is kept.
_CLAIM = f"""{_KEEP}
if redis.call('HGET', KEYS[1], 'stream') ~= ARGV[2] then return false end
local each = tonumber(ARGV[4])
local attempt = (math.floor(tonumber(redis.call('GET', KEYS[4]) or 1) / each) + 1) * each
redis.call('SET', KEYS[4], string.format('%d', attempt), 'EX', ARGV[5])
redis.call('DEL', KEYS[5])
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
keep(ARGV[3])
return {{attempt, redis.call('LRANGE', KEYS[2], 0, -1)}}
"""

# ARGV: owner; an empty one stands for any.
_FORGET = """
if ARGV[1] == '' or redis.call('HGET', KEYS[1], 'owner') == ARGV[1] then redis.call('DEL', KEYS[1], KEYS[2]) end
"""


class Claimed(Struct, frozen=True):
    stored: StoredStream
    attempt: int
    """All attempts so far are lower or have this number."""
    tokens: list[Tokens]


class StreamStore:
    """All methods raise `redis.exceptions.RedisError` when Redis is away, known within `redis_timeout`."""

    def __init__(self, redis_client: redis.asyncio.Redis, keys: Keys, settings: Settings) -> None:
        self._redis = redis_client
        self._keys = keys
        self._kept = math.ceil(settings.resume_seconds * 1000)
        self._append = redis_client.register_script(_APPEND)
        self._renew = redis_client.register_script(_RENEW)
        self._claim = redis_client.register_script(_CLAIM)
        self._forget = redis_client.register_script(_FORGET)

    async def begin(self, digest: str, owner: str, stored: StoredStream) -> None:
        """A new stream; one that was there before is forgotten, and its owner's words are refused."""
        await self.forget(digest)
        await self.append(digest, owner, stored, 0, [], create=True)

    async def append(
        self, digest: str, owner: str, stored: StoredStream, before: int, portions: list[bytes], *, create: bool
    ) -> Appended:
        """
        Args:
            before: portions that were appended before.
            portions: encoded `Tokens`.
            create: make the stream if it is not there.
        """
        words, created = encode_msgpack(stored), "1" if create else ""
        args: list[str | int | bytes] = [owner, words, self._kept, before, created, *portions]
        answer: bytes = await self._append(keys=self._names(digest), args=args)
        return "stored" if answer == b"stored" else "taken" if answer == b"taken" else "missing"

    async def renew(self, digest: str, owner: str) -> None:
        """It is still under way."""
        await self._renew(keys=self._names(digest), args=[owner, self._kept])

    async def find(self, digest: str) -> StoredStream | None:
        words = await self._redis.hget(self._keys.stream(digest), "stream")
        if not isinstance(words, bytes):
            return None
        try:
            stored = decode_stored_stream(words)
        except msgspec.MsgspecError:
            return None  # another release's words
        return stored if stored.version == WIRE_VERSION else None

    async def known(self, digest: str) -> bool:
        """Whether there is such a stream, or was one not long ago."""
        return bool(await self._redis.exists(self._keys.stream_known(digest)))

    async def claim(self, digest: str, owner: str, stored: StoredStream) -> Claimed | None:
        """Make a stream ours, as it was found; None when it is not there any more."""
        keys = [*self._names(digest), self._keys.attempt(stored.job), self._keys.cancelled(stored.job)]
        args: list[str | int | bytes] = [owner, encode_msgpack(stored), self._kept, ATTEMPTS_EACH, ATTEMPTS_SECONDS]
        answer = await self._claim(keys=keys, args=args)
        if answer is None:
            return None
        attempt, portions = answer
        return Claimed(stored, int(attempt), [decode_tokens(portion) for portion in portions])

    async def forget(self, digest: str, owner: str = "") -> None:
        """Nobody can resume it any more; does nothing when somebody else than `owner`, if given, has it."""
        await self._forget(keys=self._names(digest), args=[owner])

    def _names(self, digest: str) -> list[str]:
        return [self._keys.stream(digest), self._keys.stream_tokens(digest), self._keys.stream_known(digest)]
