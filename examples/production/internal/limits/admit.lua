-- Takes a place for one chat of an account, and reserves tokens for it, or says
-- why there is none, and for how many milliseconds. A chat that is refused uses up
-- nothing.
local admissions, tokens, places, reserved = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lease, lasts, window = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local perMinute, perDay, atOnce = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local reserve, day, known = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local today = math.floor(time[1] / 86400)

-- A Redis that is full takes this, and then all that a script writes: limits have
-- room when nothing else has.
redis.call('ZREM', places, lease)

-- Places that nobody renews are free, and so is what was reserved with them. None
-- lasts longer than a lease: the clock may have been set back.
for _, old in ipairs(redis.call('ZRANGEBYSCORE', places, '-inf', now, 'LIMIT', 0, 1000)) do
  redis.call('ZREM', places, old)
  local held = redis.call('HGET', reserved, old)
  if held then
    redis.call('HDEL', reserved, old)
    redis.call('HINCRBY', reserved, 'all', -held)
  end
end
for _, late in ipairs(redis.call('ZRANGEBYSCORE', places, '(' .. now + lasts, '+inf', 'LIMIT', 0, 1000)) do
  redis.call('ZADD', places, now + lasts, late)
end

-- What the replica knows is used counts even if Redis has forgotten it.
local used = tonumber(redis.call('GET', tokens) or 0)
if day == today and known > used then
  used = known
  redis.call('SET', tokens, used)
  redis.call('EXPIREAT', tokens, (today + 1) * 86400)
end

-- Of several reasons the one that lasts longest counts: to come back earlier
-- would be of no use.
local reason, wait = '', 0
local function refuse(why, milliseconds)
  if milliseconds > wait then reason, wait = why, milliseconds end
end

if perMinute > 0 then
  local last = tonumber(redis.call('LINDEX', admissions, -1) or 0)
  if last > now then -- the clock was set back: the times before go with it
    local times = redis.call('LRANGE', admissions, 0, -1)
    redis.call('DEL', admissions)
    for _, at in ipairs(times) do redis.call('RPUSH', admissions, at - (last - now)) end
    redis.call('PEXPIRE', admissions, window)
  end
  -- As many as the limit were admitted since this one: the next when it is a
  -- minute old.
  local oldest = redis.call('LINDEX', admissions, -perMinute)
  if oldest then refuse('minute', oldest + window - now) end
end
if perDay > 0 then
  if used >= perDay then
    refuse('tokens', (today + 1) * 86400000 - now)
  elseif used + tonumber(redis.call('HGET', reserved, 'all') or 0) >= perDay then
    refuse('reserved', 1000) -- nobody knows when a chat ends
  end
end
if atOnce > 0 and redis.call('ZCARD', places) >= atOnce then
  refuse('places', 1000)
end
if reason ~= '' then return {reason, wait, used} end

redis.call('ZADD', places, now + lasts, lease)
redis.call('PEXPIRE', places, lasts)
if perDay > 0 and reserve > 0 then
  redis.call('HSET', reserved, lease, reserve)
  redis.call('HINCRBY', reserved, 'all', reserve)
  redis.call('PEXPIRE', reserved, lasts)
end
if perMinute > 0 then
  redis.call('RPUSH', admissions, now)
  redis.call('LTRIM', admissions, -perMinute, -1)
  redis.call('PEXPIRE', admissions, window)
end
return {'', 0, used}
