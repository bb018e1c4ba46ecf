"""The one script that takes jobs off the queues."""

from __future__ import annotations

# Allowed when memory is full: the way out is to run the jobs.
PULL = r"""#!lua flags=allow-oom
-- KEYS: unacked hash, unacked index, dead list, all workers, then the sources: what the bell moved aside, the first queue,
-- the others.
-- ARGV: this worker, messages at most, tokens that fit at all, dead messages kept, then per source: messages, tokens.
-- Takes messages from the sources' heads while they fit and registers each as unacked, atomically.
-- Replies with the cost of the first queue's head if it did not fit (or 0), then tag, queue and message of each one taken.
local total, capacity, dead_kept = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now = redis.call('TIME')
local score = now[1] + now[2] / 1e6
-- A worker that was taken for dead takes nothing a reaper would not find again, even before its next heartbeat.
redis.call('ZADD', KEYS[4], 'NX', score, ARGV[1])
local reply, spent, taken = {0}, 0, 0
for source = 5, #KEYS do
  local count, tokens = tonumber(ARGV[2 * source - 5]), tonumber(ARGV[2 * source - 4])
  while taken < count and taken < total do
    local message = redis.call('LINDEX', KEYS[source], -1)
    if not message then break end
    -- Headers and properties come last: decoding a long body here would stop Redis for everybody.
    local tail = string.sub(message, -4096)
    local tag = string.match(tail, '"delivery_tag":%s*"([^"]+)"')
    local queue = source == 5 and KEYS[6] or KEYS[source]
    if not tag then
      redis.call('RPOP', KEYS[source])
      redis.call('LPUSH', KEYS[3], cjson.encode({error = 'not a Celery message', bytes = #message, queue = queue}))
      redis.call('LTRIM', KEYS[3], 0, dead_kept - 1)
    else
      local cost = tonumber(string.match(tail, '"cost":%s*(%d+)') or 1)
      -- One that can never fit is taken all the same, to be refused: it must not block the queue.
      if cost > capacity then cost = 0 end
      if spent + cost > tokens then
        if source <= 6 then reply[1] = cost end
        return reply
      end
      -- Microseconds apart, so that the order within a pull survives. Popped last: a write may be refused.
      redis.call('ZADD', KEYS[2], score + taken / 1e6, tag)
      -- Kombu's format, message, exchange and routing key: whichever way it came, it goes back to this queue.
      redis.call('HSET', KEYS[1], tag, '[' .. message .. ',"","' .. queue .. '"]')
      redis.call('RPOP', KEYS[source])
      reply[#reply + 1] = tag
      reply[#reply + 1] = queue
      reply[#reply + 1] = message
      spent, taken = spent + cost, taken + 1
    end
  end
end
return reply
"""
