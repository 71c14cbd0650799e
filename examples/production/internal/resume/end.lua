-- Says how an answer ended, unless it was stopped before, and counts what it
-- really takes from now on.
local answer, fragments, kept, sizes, bytes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, within, state, ending, size = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], tonumber(ARGV[5])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local found = redis.call('HMGET', answer, 'id', 'state')
if found[1] == id and found[2] == 'running' then
  redis.call('HSET', answer, 'state', state)
  redis.call('XADD', fragments, '*', 'end', ending)
  redis.call('PEXPIRE', answer, within)
  redis.call('PEXPIRE', fragments, within)
end
local counted = redis.call('HGET', sizes, id)
if counted then
  redis.call('INCRBY', bytes, size - counted)
  redis.call('HSET', sizes, id, size)
  redis.call('ZADD', kept, now + within, id)
end
return redis.status_reply('OK')
