-- One commit: all of it, or nothing.
--
-- KEYS[1]  prefix of all keys
-- ARGV     schema, commit id, valid until (server time, µs), 1 if an earlier attempt may still be under way,
--          how long to remember the id (ms), channel for hints, hint, how many expired entries to sweep,
--          number of conditions, number of operations,
--          conditions: kind (absent, present, at), table, key, revision
--          operations: kind (put, delete, refresh), table, key, value, time to live (µs, 0 for ever)
-- Answers  {'done', revision, now}, {'conflict', index, now}, {'late', 0, now} or {'schema', found, now}

local prefix = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local schema_key, revision_key = prefix .. ':schema', prefix .. ':revision'
local done_key = prefix .. ':done:' .. ARGV[2]
local schema, last, done = unpack(redis.call('MGET', schema_key, revision_key, done_key))
if schema and schema ~= ARGV[1] then
  return {'schema', tonumber(schema) or 0, now}
end

-- An attempt that was decided before, though its answer was lost or its caller has long asked again.
if done then
  local kind, number = string.match(done, '^(%a+) (%d+)$')
  return {kind, tonumber(number), now}
end

-- An attempt whose caller has given up must not come true later.
if now > tonumber(ARGV[3]) then
  return {'late', 0, now}
end

local expiry = prefix .. ':expiry'
local function values(name) return prefix .. ':values:' .. name end
local function index(name) return prefix .. ':index:' .. name end
local function member(name, key) return name .. '\0' .. key end

local function remove(name, key)
  redis.call('HDEL', values(name), key)
  redis.call('ZREM', index(name), key)
  redis.call('ZREM', expiry, member(name, key))
end

-- The revision of what is there, unless it has expired.
local function revision_of(name, key)
  local raw = redis.call('HGET', values(name), key)
  if not raw then return nil end
  local at = redis.call('ZSCORE', expiry, member(name, key))
  if at and tonumber(at) <= now then return nil end
  return string.match(raw, '^%d+')
end

local argument = 11
for condition = 1, tonumber(ARGV[9]) do
  local kind, name, key, expected = unpack(ARGV, argument, argument + 3)
  argument = argument + 4
  local found = revision_of(name, key)
  local holds
  if kind == 'absent' then holds = not found
  elseif kind == 'present' then holds = found
  else holds = found == expected end
  if not holds then
    -- Once it is told, an attempt that comes later must not find otherwise.
    if ARGV[4] == '1' then
      redis.call('SET', done_key, 'conflict ' .. condition - 1, 'PX', ARGV[5])
    end
    return {'conflict', condition - 1, now}
  end
end

for _, due in ipairs(redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, ARGV[8])) do
  local split = string.find(due, '\0', 1, true)
  remove(string.sub(due, 1, split - 1), string.sub(due, split + 1))
end

local revision = math.max(tonumber(last or '0') + 1, now)
local digits = string.format('%.0f', revision)
if not schema then
  redis.call('SET', schema_key, ARGV[1])
end
redis.call('SET', revision_key, digits)

for _ = 1, tonumber(ARGV[10]) do
  local kind, name, key, value, ttl = unpack(ARGV, argument, argument + 4)
  argument = argument + 5
  if kind == 'put' then
    -- A key that is there is in the index, and one that is new has no expiry: each call here costs every writer.
    local new = redis.call('HSET', values(name), key, digits .. ' ' .. value) == 1
    if new then
      redis.call('SADD', prefix .. ':tables', name)
      redis.call('ZADD', index(name), 0, key)
    end
    if ttl ~= '0' then
      redis.call('ZADD', expiry, string.format('%.0f', now + tonumber(ttl)), member(name, key))
    elseif not new then
      redis.call('ZREM', expiry, member(name, key))
    end
  elseif kind == 'delete' then
    remove(name, key)
  elseif revision_of(name, key) then
    redis.call('ZADD', expiry, string.format('%.0f', now + tonumber(ttl)), member(name, key))
  end
end

redis.call('SET', done_key, 'done ' .. digits, 'PX', ARGV[5])
if ARGV[7] ~= '' then
  redis.call('PUBLISH', ARGV[6], ARGV[7])
end
return {'done', revision, now}
