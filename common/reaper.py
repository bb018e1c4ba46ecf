"""Jobs of dead workers go back to the head of their tenant's queue, oldest first.

A worker's pulled jobs are in a hash of its own until its engine accepts them. When the worker's heartbeat is gone, one
script moves them back, atomically: workers and web processes all run it. Losses are counted outside the message,
in `Keys.attempts`, so that a job that kills every worker ends after `max_attempts`; its submitter is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any, NamedTuple, cast

import redis
import redis.asyncio
import structlog

from common.errors import GenerationFailed
from common.fair_queue import FAIR_QUEUE
from common.keys import ATTEMPTS_SECONDS, DEAD_JOBS_KEPT, Keys
from common.settings import Settings
from common.wire import WIRE_VERSION, Failed, Frame, StepFrames, encode_msgpack

log = structlog.get_logger()

RESTART_GRACE_SECONDS = 5
"""After a Redis restart heartbeats are missing because Redis was away: workers come back first."""
PUNCTUAL_SECONDS = 0.5
"""A look that takes longer finds heartbeats missing that waited for Redis as it did: it says nothing about workers."""

# Allowed when memory is full: the way out is to run the jobs.
_RETURN_JOBS = (
    "#!lua flags=allow-oom\n"
    + FAIR_QUEUE
    + r"""
-- Puts back what `worker` holds: every message, or those with the given delivery tags. Messages whose losses exceed
-- max_attempts are buried instead; with count = false no loss is counted (the worker gives them back on purpose).
local function return_jobs(prefix, worker, tags, count, max_attempts, attempts_ttl, dead_kept, buried)
  local unacked, index = prefix .. ':unacked:' .. worker, prefix .. ':unacked_index:' .. worker
  local returned = 0
  if not tags then tags = redis.call('ZREVRANGE', index, 0, -1) end
  -- Newest first: the oldest ends up at the head.
  for _, tag in ipairs(tags) do
    local entry = redis.call('HGET', unacked, tag)
    if entry then
      local exchange, routing_key = string.match(string.sub(entry, -2048), ',"([^"]*)","([^"]*)"%]$')
      local message = string.sub(entry, 2, #entry - #exchange - #routing_key - 7)
      local tail = tail_of(message)
      local id = string.match(tail, '"id":%s*"([^"]+)"') or tag
      local attempt = tonumber(string.match(tail, '"attempt":%s*(%d+)') or 1)
      local newest = tonumber(redis.call('GET', prefix .. ':attempt:' .. id) or 1)
      local losses = 0
      if count then
        local lost = prefix .. ':attempts:' .. id
        redis.call('SADD', lost, attempt .. ':' .. worker)
        redis.call('EXPIRE', lost, attempts_ttl)
        losses = redis.call('SCARD', lost)
      end
      if attempt < newest or redis.call('EXISTS', prefix .. ':cancelled:' .. id) == 1 then
        -- Nobody wants it any more.
      elseif losses >= max_attempts then
        local reply_to = string.match(tail, '"reply_to":%s*"([^"]*)"') or ''
        redis.call('LPUSH', prefix .. ':dead', cjson.encode({
          id = id, attempt = attempt, losses = losses, worker = worker, queue = routing_key, bytes = #message}))
        redis.call('LTRIM', prefix .. ':dead', 0, dead_kept - 1)
        buried[#buried + 1] = {worker, id, attempt, reply_to}
      else
        put(routing_key, message, true)
        returned = returned + 1
      end
      redis.call('HDEL', unacked, tag)
    end
    redis.call('ZREM', index, tag)
  end
  return returned
end
"""
)

_REAP = (
    _RETURN_JOBS
    + r"""
-- ARGV: prefix, dead after, restart grace, max attempts, seconds to count attempts, dead jobs kept, the server's time at
-- which this comes too late
local prefix = ARGV[1]
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local oldest = now - tonumber(ARGV[2])
local dead = redis.call('ZRANGEBYSCORE', prefix .. ':workers', '-inf', '(' .. string.format('%.6f', oldest))
local reaped, buried = {}, {}
if #dead == 0 or now > tonumber(ARGV[7]) then return {reaped, buried} end
local uptime = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
if uptime < tonumber(ARGV[3]) then return {reaped, buried} end
for _, worker in ipairs(dead) do
  local returned = return_jobs(prefix, worker, nil, true, tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]), buried)
  redis.call('DEL', prefix .. ':unacked:' .. worker, prefix .. ':unacked_index:' .. worker, prefix .. ':worker:' .. worker)
  redis.call('ZREM', prefix .. ':workers', worker)
  reaped[#reaped + 1] = {worker, returned}
end
return {reaped, buried}
"""
)

_HAND_BACK = (
    _RETURN_JOBS
    + r"""
-- ARGV: prefix, worker, then delivery tags, newest first (none: everything)
local tags = nil
if #ARGV > 2 then
  tags = {}
  for i = 3, #ARGV do tags[#tags + 1] = ARGV[i] end
end
return return_jobs(ARGV[1], ARGV[2], tags, false, 1, 0, 0, {})
"""
)


class Reaped(NamedTuple):
    """What one run of the reaper did."""

    workers: dict[str, int]
    """Workers found dead, with how many of their jobs went back to the queue."""
    notices: list[tuple[str, bytes]]
    """Channel and message for each submitter of a job that was given up."""
    buried: list[str]
    """Ids of jobs given up after `max_attempts`."""


NOTHING = Reaped({}, [], [])


def reap(client: redis.Redis, settings: Settings, *, grace: float = RESTART_GRACE_SECONDS) -> Reaped:
    """Return the jobs of every dead worker to their queues and tell submitters of jobs given up.

    Raises:
        redis.RedisError: Redis is away or slow; nothing half done is left behind.
    """
    asked = monotonic()
    now = client.time()
    if monotonic() - asked > PUNCTUAL_SECONDS:
        return NOTHING
    reaped = _reaped(client.eval(_REAP, 0, *_arguments(settings, grace, now)))
    for channel, message in reaped.notices:
        client.publish(channel, message)
    return reaped


async def reap_async(
    client: redis.asyncio.Redis, settings: Settings, *, grace: float = RESTART_GRACE_SECONDS
) -> Reaped:
    """As `reap`, on an event loop."""
    asked = monotonic()
    now = await client.time()
    if monotonic() - asked > PUNCTUAL_SECONDS:
        return NOTHING
    reaped = _reaped(await client.eval(_REAP, 0, *_arguments(settings, grace, now)))
    for channel, message in reaped.notices:
        await client.publish(channel, message)
    return reaped


def hand_back(client: redis.Redis, keys: Keys, worker: str, tags: Sequence[str] | None = None) -> int:
    """A worker gives jobs back to the head of their queue, in their order; no attempt is counted.

    Args:
        tags: delivery tags in the order they were pulled; None means everything the worker holds.

    Returns:
        How many messages are back.
    """
    if tags is not None and not tags:
        return 0
    return int(cast(int, client.eval(_HAND_BACK, 0, keys.prefix, worker, *reversed(tags or ()))))


def _arguments(settings: Settings, grace: float, now: tuple[int, int]) -> list[str]:
    too_late = now[0] + now[1] / 1e6 + PUNCTUAL_SECONDS
    numbers = (settings.worker_dead_after, grace, settings.max_attempts, ATTEMPTS_SECONDS, DEAD_JOBS_KEPT, too_late)
    return [settings.key_prefix, *map(str, numbers)]


def _reaped(reply: Any) -> Reaped:
    workers = {_text(worker): int(returned) for worker, returned in reply[0]}
    notices, buried = [], []
    for worker, request, attempt, reply_to in reply[1]:
        buried.append(_text(request))
        if reply_to:
            error = GenerationFailed("every worker that took this request was lost")
            body = Failed(error.error_type, error.message)
            frames = [Frame(_text(request), int(attempt), 0, body)]
            notices.append((_text(reply_to), encode_msgpack(StepFrames(WIRE_VERSION, _text(worker), frames))))
    if workers:
        log.warning("workers_reaped", workers=workers, jobs_given_up=buried)
    return Reaped(workers, notices, buried)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
