-- One commit: all of it, or nothing.
--
-- KEYS[1]  prefix of all keys
-- ARGV     schema, commit id, valid until (server time, µs), 1 if an earlier attempt may still be under way,
--          how long to remember the id (ms), channel for hints, hint, how many listeners there the caller is,
--          how many expired entries to sweep, number of conditions, number of operations,
--          conditions: kind (absent, present, at), table, key, revision
--          operations: kind (put, delete, refresh), table, key, value, time to live (µs, 0 for ever)
-- Answers  {'done', revision, now, 1 if others were told}, {'conflict', index, now}, {'late', 0, now}
--          or {'schema', found, now}
--
-- Everybody waits while it runs, and most of that time is its calls: each one must be needed.

local call = redis.call
local prefix = KEYS[1]
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

local schema_key, revision_key, listed_key = prefix .. ':schema', prefix .. ':revision', prefix .. ':listed'
local done_key = prefix .. ':done:' .. ARGV[2]
local found = call('MGET', schema_key, revision_key, listed_key, done_key)
local schema, last, listed, done = found[1], found[2], found[3], found[4]
if schema and schema ~= ARGV[1] then
  return {'schema', tonumber(schema) or 0, now}
end

-- An attempt that was decided before, though its answer was lost or its caller has long asked again.
if done then
  local kind, number = string.match(done, '^(%a+) (%d+)$')
  return {kind, tonumber(number), now, 0}
end

-- An attempt whose caller has given up must not come true later.
if now > tonumber(ARGV[3]) then
  return {'late', 0, now}
end

local expiry = prefix .. ':expiry'
local values, index = prefix .. ':values:', prefix .. ':index:'

local function remove(name, key)
  call('HDEL', values .. name, key)
  call('ZREM', index .. name, key)
  call('ZREM', expiry, name .. '\0' .. key)
end

-- The revision of what is there, unless it has expired, and whether it is to expire.
local function revision_of(name, key)
  local raw = call('HGET', values .. name, key)
  if not raw then return nil end
  local at = call('ZSCORE', expiry, name .. '\0' .. key)
  if at and tonumber(at) <= now then return nil, true end
  return string.match(raw, '^%d+'), at
end

-- What was seen to be there for good.
local lasting = {}
local argument = 12
for condition = 0, ARGV[10] - 1 do
  local kind, name, key = ARGV[argument], ARGV[argument + 1], ARGV[argument + 2]
  local revision, expires = revision_of(name, key)
  local holds
  if kind == 'absent' then holds = not revision
  elseif kind == 'present' then holds = revision
  else holds = revision == ARGV[argument + 3] end
  if not holds then
    -- Once it is told, an attempt that comes later must not find otherwise.
    if ARGV[4] == '1' then
      call('SET', done_key, 'conflict ' .. condition, 'PX', ARGV[5])
    end
    return {'conflict', condition, now}
  end
  if revision and not expires then lasting[name .. '\0' .. key] = true end
  argument = argument + 4
end

local first, final = argument, argument + 5 * (ARGV[11] - 1)

-- Who adds what expires removes what has expired, and so keeps pace; others do now and then, for what is left.
local sweeps = now % 16 == 0
for operation = first, final, 5 do
  if ARGV[operation + 4] ~= '0' then sweeps = true break end
end
if sweeps then
  for _, due in ipairs(call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, ARGV[9])) do
    local split = string.find(due, '\0', 1, true)
    remove(string.sub(due, 1, split - 1), string.sub(due, split + 1))
  end
end

local revision = math.max((last or 0) + 1, now)
local digits = string.format('%.0f', revision)
if not schema then
  call('SET', schema_key, ARGV[1])
end
call('SET', revision_key, digits)

for operation = first, final, 5 do
  local kind, name, key, ttl = ARGV[operation], ARGV[operation + 1], ARGV[operation + 2], ARGV[operation + 4]
  if kind == 'put' then
    -- A key that is there is in the index, and one that is new has no expiry.
    local new = call('HSET', values .. name, key, digits .. ' ' .. ARGV[operation + 3]) == 1
    if new then
      call('ZADD', index .. name, 0, key)
      if not (listed and string.find(listed, ' ' .. name .. ' ', 1, true)) then
        listed = (listed or ' ') .. name .. ' '
        call('SADD', prefix .. ':tables', name)
        call('SET', listed_key, listed)
      end
    end
    if ttl ~= '0' then
      call('ZADD', expiry, string.format('%.0f', now + ttl), name .. '\0' .. key)
    elseif not new and not lasting[name .. '\0' .. key] then
      call('ZREM', expiry, name .. '\0' .. key)
    end
  elseif kind == 'delete' then
    if call('HDEL', values .. name, key) == 1 then
      call('ZREM', index .. name, key)
      if not lasting[name .. '\0' .. key] then call('ZREM', expiry, name .. '\0' .. key) end
    end
  elseif revision_of(name, key) then
    call('ZADD', expiry, string.format('%.0f', now + ttl), name .. '\0' .. key)
  end
end

call('SET', done_key, 'done ' .. digits, 'PX', ARGV[5])

-- A caller that is the only one to listen tells itself. Who may not count listeners tells them all.
local told = 0
if ARGV[7] ~= '' then
  local listeners = redis.pcall('PUBSUB', 'NUMSUB', ARGV[6])
  if listeners.err or listeners[2] > tonumber(ARGV[8]) then
    call('PUBLISH', ARGV[6], ARGV[7])
    told = 1
  end
end
return {'done', revision, now, told}
