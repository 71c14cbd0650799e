-- Stops an answer that is under way: for those who follow it by its last entry,
-- for its replica by a message.
local answer, fragments = KEYS[1], KEYS[2]
local id, within, ending, stops = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

local found = redis.call('HMGET', answer, 'id', 'state')
if found[1] ~= id or found[2] ~= 'running' then return redis.status_reply('OK') end
redis.call('HSET', answer, 'state', 'stopped')
redis.call('XADD', fragments, '*', 'end', ending)
redis.call('PEXPIRE', answer, within)
redis.call('PEXPIRE', fragments, within)
redis.call('PUBLISH', stops, id)
return redis.status_reply('OK')
