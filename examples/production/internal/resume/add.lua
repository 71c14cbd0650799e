-- Adds fragments to an answer, those that it does not have yet, and lets its
-- lease last longer. Says how the answer is, and for how long nobody has
-- followed it elsewhere.
local answer, fragments, kept = KEYS[1], KEYS[2], KEYS[3]
local id, lease, within, written = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local found = redis.call('HMGET', answer, 'id', 'state', 'followed')
if found[1] ~= id then return {'lost', 0} end
if found[2] ~= 'running' then return {found[2], 0} end

redis.call('HSET', answer, 'until', now + lease)
redis.call('PEXPIRE', answer, lease + within)
redis.call('ZADD', kept, 'XX', now + lease + within, id)
for i = 5 + redis.call('XLEN', fragments) - written, #ARGV do
  redis.call('XADD', fragments, '*', 'text', ARGV[i])
end
redis.call('PEXPIRE', fragments, lease + within)
return {'running', now - found[3]}
