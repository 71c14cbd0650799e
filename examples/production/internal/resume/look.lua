-- Says that somebody follows an answer, and how it is.
local answer, id = KEYS[1], ARGV[1]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local found = redis.call('HMGET', answer, 'id', 'state', 'until')
if found[1] ~= id then return 'lost' end
if found[2] == 'running' and tonumber(found[3]) <= now then return 'lost' end
redis.call('HSET', answer, 'followed', now)
return found[2]
