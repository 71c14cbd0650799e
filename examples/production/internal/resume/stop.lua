-- Stops the answer of a name if it is in progress: followers see its state, its
-- replica gets a message. Returns the answer's id, if the name has one.
local prefix, lease, keep, stops, news = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]

local found = redis.call('HMGET', answer, 'id', 'state', 'held')
local id = found[1]
if not id or (found[2] ~= 'running' and found[2] ~= 'large') then return id end
redis.call('HSET', answer, 'state', 'stopped')
redis.call('PEXPIRE', answer, keep)
redis.call('PEXPIRE', prefix .. 'fragments:' .. id, lease)
redis.call('ZREM', alone, id)
local size, account = counted(id)
if account then count(id, account, overhead + (found[3] or 0), keep) end
redis.call('PUBLISH', stops, id)
redis.call('PUBLISH', news, id)
return id
