"""The one script that takes jobs off the queues."""

from __future__ import annotations

from common.fair_queue import FAIR_QUEUE

# Allowed when memory is full: the way out is to run the jobs.
PULL = (
    "#!lua flags=allow-oom\n"
    + FAIR_QUEUE
    + r"""
-- KEYS: unacked hash, unacked index, dead list, all workers, then the queues: interactive, then those of batch work.
-- ARGV: this worker, messages at most, tokens that fit at all, dead messages kept, tokens an answer is expected to have,
-- seconds after which batch work is overdue, its share then, then per queue: messages, tokens.
-- Takes messages in fair order while they fit and registers each as unacked, atomically.
-- Replies with the tokens of the message in line if it did not fit (or 0), then tag, queue, message and whether it was
-- overdue batch work, of each one taken.
local total, capacity, dead_kept = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local expected, overdue_after, share = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local FIRST_QUEUE, FIRST_LIMIT = 5, 8
local now = seconds_now()
-- A worker that was taken for dead takes nothing a reaper would not find again, even before its next heartbeat.
redis.call('ZADD', KEYS[4], 'NX', exact(now), ARGV[1])
local reply, spent, taken, costs = {0}, 0, 0, {}

-- The message in line, as a table; what is no message is buried on the way. nil when there is none.
local function find(queue)
  while true do
    local message, tenant, turn = in_line(queue)
    if not message then return nil end
    local tail = tail_of(message)
    local tag = string.match(tail, '"delivery_tag":%s*"([^"]+)"')
    if tag then
      -- Others' messages do not say what they cost: one token of room, though they are charged an answer.
      local cost = number_in(tail, 'cost')
      local prompt = number_in(tail, 'prompt') or 0
      local answers = expected * (number_in(tail, 'sequences') or 1)
      local tokens = cost and prompt + math.min(math.max(cost - prompt, 0), answers) or 1
      local charge = cost and tokens or 1 + math.min(answers, capacity)
      -- One that can never fit, or must not start any more, is taken all the same, to be refused: it must not be in the way.
      local deadline = number_in(tail, 'deadline')
      if (cost or 0) > capacity or (deadline and deadline <= now) then tokens, charge = 0, 0 end
      return {queue = queue, tenant = tenant, turn = turn, message = message, tail = tail, tag = tag,
        cost = cost or 1, tokens = tokens, charge = charge}
    end
    redis.call('RPOP', list_of(queue, tenant))
    redis.call('LPUSH', KEYS[3], cjson.encode({error = 'not a Celery message', bytes = #message, queue = queue}))
    redis.call('LTRIM', KEYS[3], 0, dead_kept - 1)
  end
end

local function register(found, overdue)
  -- Microseconds apart, so that the order within a pull survives. Popped last: a write may be refused.
  redis.call('ZADD', KEYS[2], exact(now + taken / 1e6), found.tag)
  -- Kombu's format, message, exchange and routing key: whichever way it came, it goes back to this queue.
  redis.call('HSET', KEYS[1], found.tag, '[' .. found.message .. ',"","' .. found.queue .. '"]')
  take(found.queue, found.tenant, found.turn, found.tail, found.charge)
  for _, part in ipairs({found.tag, found.queue, found.message, overdue}) do reply[#reply + 1] = part end
  spent, taken = spent + found.tokens, taken + 1
  costs[found.queue] = (costs[found.queue] or 0) + found.cost
end

-- Overdue batch work goes first, as far as its credit reaches: a share of the interactive tokens taken while it waited.
-- Returns false when it is in line and does not fit.
local function take_overdue(queue)
  local credit = tonumber(redis.call('HGET', queue .. ':depth', 'credit') or 0)
  if credit <= 0 then return true end
  local found = find(queue)
  if not found or found.tokens > credit then return true end
  if now - (number_in(found.tail, 'submitted') or 0) < overdue_after then return true end
  if tonumber(ARGV[FIRST_LIMIT]) <= 0 then return true end
  if found.tokens > tonumber(ARGV[FIRST_LIMIT + 1]) then
    reply[1] = found.tokens
    return false
  end
  register(found, 1)
  redis.call('HSET', queue .. ':depth', 'credit', exact(credit - found.tokens))
  return true
end

local function take_all()
  for source = FIRST_QUEUE + 1, #KEYS do
    if not take_overdue(KEYS[source]) then return end
  end
  for source = FIRST_QUEUE, #KEYS do
    local queue, limit = KEYS[source], FIRST_LIMIT + 2 * (source - FIRST_QUEUE)
    local messages, tokens = tonumber(ARGV[limit]), tonumber(ARGV[limit + 1])
    local before = spent
    while taken < messages and taken < total do
      local found = find(queue)
      if not found then break end
      if spent + found.tokens > tokens then
        if source == FIRST_QUEUE then reply[1] = found.tokens end
        messages = 0
      else
        register(found, 0)
      end
    end
    if source == FIRST_QUEUE and spent > before then
      for other = FIRST_QUEUE + 1, #KEYS do
        if in_line(KEYS[other]) then
          local depth = KEYS[other] .. ':depth'
          local credit = tonumber(redis.call('HGET', depth, 'credit') or 0) + (spent - before) * share
          redis.call('HSET', depth, 'credit', exact(math.min(credit, capacity)))
        end
      end
    end
    -- Nothing overtakes what is in line and does not fit.
    if messages == 0 and reply[1] > 0 then return end
  end
end

for source = FIRST_QUEUE, #KEYS do join_others(KEYS[source]) end
take_all()
settle()
for queue, cost in pairs(costs) do drained(queue, cost, now) end
return reply
"""
)
