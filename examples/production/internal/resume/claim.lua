-- Makes an id the answer of a name that has none to join, or says what it has.
local answer, kept, sizes, bytes = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, body, lease, within = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local reserved, all = tonumber(ARGV[5]), tonumber(ARGV[6])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local found = redis.call('HMGET', answer, 'id', 'body', 'state', 'until')
if found[1] then
  if found[2] ~= body then return {'other', ''} end
  if found[3] == 'stopped' then return {'stopped', ''} end
  if found[3] == 'whole' or (found[3] == 'running' and tonumber(found[4]) > now) then
    redis.call('HSET', answer, 'followed', now)
    return {'answer', found[1]}
  end
end

-- What has expired is not counted any more.
for _, old in ipairs(redis.call('ZRANGEBYSCORE', kept, '-inf', now, 'LIMIT', 0, 100)) do
  redis.call('DECRBY', bytes, redis.call('HGET', sizes, old) or 0)
  redis.call('HDEL', sizes, old)
  redis.call('ZREM', kept, old)
end
if tonumber(redis.call('GET', bytes) or 0) + reserved > all then return {'full', ''} end
redis.call('INCRBY', bytes, reserved)
redis.call('HSET', sizes, id, reserved)
redis.call('ZADD', kept, now + lease + within, id)

redis.call('HSET', answer, 'id', id, 'body', body, 'state', 'running', 'until', now + lease, 'followed', now)
redis.call('PEXPIRE', answer, lease + within)
return {'nothing', id}
