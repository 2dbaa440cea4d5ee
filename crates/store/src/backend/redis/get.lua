-- One entry.
--
-- KEYS[1]  prefix of all keys
-- ARGV     table, key
-- Answers  nothing, or {revision and value, µs left or -1}

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local raw = redis.call('HGET', KEYS[1] .. ':values:' .. ARGV[1], ARGV[2])
if not raw then return false end
local at = redis.call('ZSCORE', KEYS[1] .. ':expiry', ARGV[1] .. '\0' .. ARGV[2])
if not at then return {raw, -1} end
local left = tonumber(at) - now
if left <= 0 then return false end
return {raw, left}
