"""What happens to files and batches in Redis at once, in Lua; who calls it says what it means (`file_records`,
`batch_records`, `store`)."""

from __future__ import annotations

_EXPIRE_LATER = """
-- A list goes with the last of what is in it.
local function expire_later(key, at)
  if redis.call('EXPIRETIME', key) < tonumber(at) then redis.call('EXPIREAT', key, at) end
end
"""

_MICROSECONDS = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function exact(number) return string.format('%.0f', number) end
"""

# KEYS: file, files, file_expiry. ARGV: record, id, entry, when its bytes go, when the record goes.
PUT_FILE = (
    _EXPIRE_LATER
    + """
redis.call('SET', KEYS[1], ARGV[1], 'EXAT', ARGV[5])
redis.call('ZADD', KEYS[2], 0, ARGV[2])
expire_later(KEYS[2], ARGV[5])
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[3])
"""
)

# KEYS: file, files, file_expiry, file_users. ARGV: id, entry, now, when to try again. Its bytes are due from here on.
DELETE_FILE = """
local user = redis.call('SRANDMEMBER', KEYS[4])
if user then
  if tonumber(redis.call('ZSCORE', KEYS[3], ARGV[2]) or ARGV[4]) < tonumber(ARGV[3]) then
    redis.call('ZADD', KEYS[3], ARGV[4], ARGV[2])
  end
  return user
end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZADD', KEYS[3], 0, ARGV[2])
return false
"""

# KEYS: batch, batches, waiting_batches, batch_turns, file, file_users.
# ARGV: id, tenant, object, request, when the record goes, a batch's name without its end.
# Records go by themselves: with each batch that comes, two that are gone go from the list.
CREATE_BATCH = (
    _EXPIRE_LATER
    + _MICROSECONDS
    + """
if redis.call('EXISTS', KEYS[5]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'tenant', ARGV[2], 'object', ARGV[3], 'request', ARGV[4], 'revision', 1)
redis.call('EXPIREAT', KEYS[1], ARGV[5])
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, 1)) do
  if redis.call('EXISTS', ARGV[6] .. id) == 0 then redis.call('ZREM', KEYS[2], id) end
end
redis.call('ZADD', KEYS[2], 0, ARGV[1])
expire_later(KEYS[2], ARGV[5])
redis.call('ZADD', KEYS[3], 0, ARGV[1])
redis.call('ZADD', KEYS[4], 'NX', exact(now), ARGV[2])
redis.call('SADD', KEYS[6], ARGV[1])
expire_later(KEYS[6], ARGV[5])
return 1
"""
)

# KEYS: batch_turns, held_batches. ARGV: names of a batch and of waiting batches without their ends, token, lease in ms.
# The caller whose turn it is gives its oldest batch, and is last from then on.
CLAIM_BATCH = (
    _MICROSECONDS
    + """
local milliseconds = math.floor(now / 1000)
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', milliseconds, 'LIMIT', 0, 100)) do
  local tenant, id = string.match(entry, '^(.*)/([^/]*)$')
  redis.call('ZREM', KEYS[2], entry)
  redis.call('ZADD', ARGV[2] .. tenant, 0, id)
  redis.call('ZADD', KEYS[1], 'NX', exact(now), tenant)
end
while true do
  local tenant = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
  if not tenant then return false end
  local id = redis.call('ZPOPMIN', ARGV[2] .. tenant)[1]
  if redis.call('EXISTS', ARGV[2] .. tenant) == 1 then
    redis.call('ZADD', KEYS[1], exact(now), tenant)
  else
    redis.call('ZREM', KEYS[1], tenant)
  end
  if id and redis.call('EXISTS', ARGV[1] .. id) == 1 then
    redis.call('HSET', ARGV[1] .. id, 'token', ARGV[3])
    redis.call('ZADD', KEYS[2], milliseconds + ARGV[4], tenant .. '/' .. id)
    local kept = redis.call('HMGET', ARGV[1] .. id, 'object', 'request')
    return {tenant, kept[1], kept[2]}
  end
end
"""
)

# KEYS: batch, held_batches, waiting_batches. ARGV: token, entry, id, lease in ms. It may have been out, and nobody came.
RENEW_LEASE = (
    _MICROSECONDS
    + """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
redis.call('ZADD', KEYS[2], math.floor(now / 1000) + ARGV[4], ARGV[2])
redis.call('ZREM', KEYS[3], ARGV[3])
return 1
"""
)

# KEYS: batch, held_batches, waiting_batches, batch_turns. ARGV: token, entry, id, tenant.
RELEASE_LEASE = (
    _MICROSECONDS
    + """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return end
redis.call('HDEL', KEYS[1], 'token')
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('ZADD', KEYS[3], 0, ARGV[3])
redis.call('ZADD', KEYS[4], 'NX', exact(now), ARGV[4])
"""
)

# KEYS: batch, batch_parts, held_batches, file_users of its input.
# ARGV: token or nothing, revision, object, id, entry, when the record goes, whether it has ended, parts: name, value, ...
WRITE_BATCH = """
local kept = redis.call('HMGET', KEYS[1], 'token', 'revision')
if not kept[2] then return 'gone' end
if ARGV[1] ~= '' and kept[1] ~= ARGV[1] then return 'lost' end
if ARGV[8] and redis.call('HEXISTS', KEYS[2], ARGV[8]) == 1 then return 'registered' end
if kept[2] ~= ARGV[2] then return 'changed' end
redis.call('HSET', KEYS[1], 'object', ARGV[3], 'revision', kept[2] + 1)
redis.call('EXPIREAT', KEYS[1], ARGV[6])
for at = 8, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1]) end
if ARGV[7] == '1' then
  redis.call('HDEL', KEYS[1], 'token')
  redis.call('DEL', KEYS[2])
  redis.call('ZREM', KEYS[3], ARGV[5])
  redis.call('SREM', KEYS[4], ARGV[4])
else
  redis.call('EXPIREAT', KEYS[2], ARGV[6])
end
return 'written'
"""
