-- One page of one table.
--
-- KEYS[1]  prefix of all keys
-- ARGV     table, lower bound, upper bound, most entries, most bytes
-- Answers  {last key looked at if more follow, else '', then key, revision and value, µs left or -1, …}

local prefix, name = KEYS[1], ARGV[1]
local most, budget = tonumber(ARGV[4]), tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local keys = redis.call('ZRANGEBYLEX', prefix .. ':index:' .. name, ARGV[2], ARGV[3], 'LIMIT', 0, most + 1)
local page = {''}
local bytes = 0
for position, key in ipairs(keys) do
  if position > most or bytes > budget then
    page[1] = keys[position - 1]
    break
  end
  local at = redis.call('ZSCORE', prefix .. ':expiry', name .. '\0' .. key)
  local left = at and tonumber(at) - now or -1
  if not at or left > 0 then
    local raw = redis.call('HGET', prefix .. ':values:' .. name, key)
    if raw then
      bytes = bytes + #raw
      page[#page + 1] = key
      page[#page + 1] = raw
      page[#page + 1] = left
    end
  end
end
return page
