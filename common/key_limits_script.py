"""The atomic script behind `common.key_limits`.

KEYS: the key's hash. It holds `used` ("level milliseconds": the bucket, and when it was that full) and for each process
with something under way "requests tokens lease-end".
ARGV: process, lease in ms, limit of requests, limit of tokens a minute (-1: none), requests and tokens this process holds,
tokens it has used up since its last call; then for each wish its requests and its tokens.
Reply: requests and tokens taken by all processes, then for each wish 0 or what it was refused for.
"""

from __future__ import annotations

REQUESTS = 1
TOKENS = 2

SCRIPT = f"""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local process, lease = ARGV[1], tonumber(ARGV[2])
local request_limit, token_limit = tonumber(ARGV[3]), tonumber(ARGV[4])
local requests, tokens, spent = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local used, other_requests, other_tokens = 0, 0, 0
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local name, value = fields[i], fields[i + 1]
  if name == 'used' then
    local level, since = string.match(value, '^(%S+) (%S+)$')
    used = math.max(0, level - (now - since) * math.max(token_limit, 0) / 60000)
  elseif name ~= process then
    local held, reserved, ends = string.match(value, '^(%S+) (%S+) (%S+)$')
    if tonumber(ends) <= now then
      redis.call('HDEL', KEYS[1], name)
    else
      other_requests = other_requests + held
      other_tokens = other_tokens + reserved
    end
  end
end
used = used + spent
local refusals = {{}}
for i = 8, #ARGV, 2 do
  local more_requests, more_tokens = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  local refusal = 0
  if more_requests > 0 and request_limit >= 0 and other_requests + requests + more_requests > request_limit then
    refusal = {REQUESTS}
  elseif more_tokens > 0 and token_limit >= 0 and used + other_tokens + tokens + more_tokens > token_limit then
    refusal = {TOKENS}
  else
    requests = requests + more_requests
    tokens = tokens + more_tokens
  end
  refusals[#refusals + 1] = refusal
end
if requests > 0 or tokens > 0 then
  redis.call('HSET', KEYS[1], process, string.format('%d %d %d', requests, tokens, now + lease))
else
  redis.call('HDEL', KEYS[1], process)
end
if used > 0 then
  redis.call('HSET', KEYS[1], 'used', string.format('%.3f %d', used, now))
else
  redis.call('HDEL', KEYS[1], 'used')
end
-- How long the bucket takes to drain, which a request longer than was asked for may have overfilled.
local drained = token_limit > 0 and math.ceil(used * 60000 / token_limit) or 0
redis.call('PEXPIRE', KEYS[1], math.max(lease, drained))
return {{other_requests + requests, math.ceil(used + other_tokens + tokens), unpack(refusals)}}
"""
