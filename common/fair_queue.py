"""The queue of one model and class inside Redis: a list of messages for each tenant, and whose turn it is.

Start-time fair queueing: a tenant's turn comes at a virtual time, which a job taken moves on by its tokens over the
tenant's weight. The tenant with the least one is next, and one that had nothing waiting joins at the time of the job taken
last, so that a flood delays another tenant's job by about one of the flood's own, and idling saves nothing up.

This is Lua that other scripts begin with; every function takes a queue's name, of `Keys.queue`. The list with that very name is
that of the tenant "", where any Celery producer may push; the others' are beside it (see `common.keys`). What belongs to
a queue goes when the last message does.
"""

from __future__ import annotations

RATE_SECONDS = 10.0
"""How fast a queue drains is a mean over about so long."""

FAIR_QUEUE = (
    f"""
local RATE_SECONDS = {RATE_SECONDS}
"""
    + r"""
-- Headers and properties, which come last: decoding a long body here would stop Redis for everybody, and a quotation mark in a
-- body is never without its backslash.
local function tail_of(message)
  local tail = string.sub(message, -4096)
  local at = string.find(tail, '"headers":', 1, true)
  return at and string.sub(tail, at) or tail
end

local function number_in(tail, name) return tonumber(string.match(tail, '"' .. name .. '":%s*([%d.]+)')) end

local function tenant_of(tail) return string.match(tail, '"tenant":%s*"([^"]*)"') or '' end

local function list_of(queue, tenant)
  if tenant == '' then return queue end
  return queue .. ':tenant:' .. tenant
end

local function exact(number) return string.format('%.17g', number) end

local function seconds_now()
  local now = redis.call('TIME')
  return now[1] + now[2] / 1e6
end

-- Counts a message in or out. Other producers' messages do not say what they cost; their list tells how many there are.
local function count(queue, tenant, tail, sign)
  local depth = queue .. ':depth'
  if tenant ~= '' then redis.call('HINCRBY', depth, 'jobs', sign) end
  local cost = number_in(tail, 'cost')
  if cost then redis.call('HINCRBY', depth, 'tokens', sign * cost) end
end

-- Adds a message at the end of its tenant's list, or at its head when it has had its turn before.
local function put(queue, message, at_head)
  local tail = tail_of(message)
  local tenant = tenant_of(tail)
  redis.call(at_head and 'RPUSH' or 'LPUSH', list_of(queue, tenant), message)
  count(queue, tenant, tail, 1)
  local virtual = redis.call('GET', queue .. ':virtual') or '0'
  redis.call('ZADD', queue .. ':turns', at_head and 'LT' or 'GT', virtual, tenant)
  if redis.call('EXISTS', queue .. ':bell') == 0 then redis.call('LPUSH', queue .. ':bell', '1') end
end

local function jobs_waiting(queue)
  return redis.call('LLEN', queue) + math.max(0, tonumber(redis.call('HGET', queue .. ':depth', 'jobs') or 0))
end

-- What this script has taken off queues and not yet written down.
local pending = {}

local function forget(queue)
  pending[queue] = nil
  redis.call('DEL', queue .. ':turns', queue .. ':virtual', queue .. ':depth', queue .. ':bell')
end

-- Takes a message out, wherever it is in its tenant's list; returns whether it was there.
local function remove(queue, message)
  local tail = tail_of(message)
  local tenant = tenant_of(tail)
  if redis.call('LREM', list_of(queue, tenant), 1, message) == 0 then return false end
  count(queue, tenant, tail, -1)
  if jobs_waiting(queue) == 0 then forget(queue) end
  return true
end

-- Other producers' jobs have their turn, too: to be called before `in_line`.
local function join_others(queue)
  if redis.call('LLEN', queue) == 0 then return end
  redis.call('ZADD', queue .. ':turns', 'NX', redis.call('GET', queue .. ':virtual') or '0', '')
end

-- The message in line, whose it is, and when its turn is in virtual time; nil when nothing waits.
local function in_line(queue)
  local turns = queue .. ':turns'
  while true do
    local first = redis.call('ZRANGE', turns, 0, 0, 'WITHSCORES')
    local tenant, turn = first[1], first[2]
    if not tenant then
      forget(queue)
      return nil
    end
    local message = redis.call('LINDEX', list_of(queue, tenant), -1)
    if message then return message, tenant, tonumber(turn) end
    -- Nothing waits, and whoever is served next has a later turn: nothing is left to remember.
    redis.call('ZREM', turns, tenant)
    redis.call('SET', queue .. ':virtual', turn)
    if pending[queue] then pending[queue].turn = tonumber(turn) end
  end
end

-- Takes the message in line off its list; `settle` must follow.
local function take(queue, tenant, turn, tail, tokens)
  redis.call('RPOP', list_of(queue, tenant))
  local weight = number_in(tail, 'weight') or 1
  if weight <= 0 then weight = 1 end
  redis.call('ZADD', queue .. ':turns', exact(turn + tokens / weight), tenant)
  local taken = pending[queue] or {jobs = 0, tokens = 0}
  pending[queue] = taken
  taken.turn = turn
  if tenant ~= '' then taken.jobs = taken.jobs + 1 end
  taken.tokens = taken.tokens + (number_in(tail, 'cost') or 0)
end

-- Writes down what was taken.
local function settle()
  for queue, taken in pairs(pending) do
    redis.call('SET', queue .. ':virtual', exact(taken.turn))
    if taken.jobs > 0 then redis.call('HINCRBY', queue .. ':depth', 'jobs', -taken.jobs) end
    if taken.tokens > 0 then redis.call('HINCRBY', queue .. ':depth', 'tokens', -taken.tokens) end
  end
end

-- So many tokens' worth of jobs were taken now: a sum in which the past fades.
local function drained(queue, tokens, now)
  local key = queue .. ':drained'
  local sum, at, since = unpack(redis.call('HMGET', key, 'sum', 'at', 'since'))
  if at then
    sum = sum * math.exp((at - now) / RATE_SECONDS)
  else
    sum, since = 0, exact(now)
  end
  redis.call('HSET', key, 'sum', exact(sum + tokens), 'at', exact(now), 'since', since)
  redis.call('EXPIRE', key, 12 * RATE_SECONDS)
end

-- Whole seconds until what waits now will have been taken; a mean's time when nothing was taken lately.
local function seconds_to_drain(queue, now)
  local waiting = tonumber(redis.call('HGET', queue .. ':depth', 'tokens') or 0)
  if waiting <= 0 then return 0 end
  local sum, at, since = unpack(redis.call('HMGET', queue .. ':drained', 'sum', 'at', 'since'))
  if not at then return RATE_SECONDS end
  local seen = 1 - math.exp(-math.max(now - since, 1) / RATE_SECONDS)
  local rate = sum * math.exp((at - now) / RATE_SECONDS) / RATE_SECONDS / seen
  return math.ceil(math.min(waiting / rate, 1e6))
end
"""
)
