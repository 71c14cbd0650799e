-- Takes a slot for one chat of an account, and reserves tokens for it, or returns
-- why there is none, and for how many milliseconds. A rejected chat uses up
-- nothing.
local admissions, tokens, slots, reserved = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lease, lasts, window = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local perMinute, perDay, concurrent = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local reserve, day, known = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local today = math.floor(time[1] / 86400)

-- A full Redis runs a script that begins with this command, and accepts all its
-- writes. So limits still work when nothing else has room.
redis.call('ZREM', slots, lease)

-- Slots that are not renewed are released, with their reservations. None lasts
-- longer than a lease: the clock may have been set back.
for _, old in ipairs(redis.call('ZRANGEBYSCORE', slots, '-inf', now, 'LIMIT', 0, 1000)) do
  redis.call('ZREM', slots, old)
  local held = redis.call('HGET', reserved, old)
  if held then
    redis.call('HDEL', reserved, old)
    redis.call('HINCRBY', reserved, 'all', -held)
  end
end
for _, late in ipairs(redis.call('ZRANGEBYSCORE', slots, '(' .. now + lasts, '+inf', 'LIMIT', 0, 1000)) do
  redis.call('ZADD', slots, now + lasts, late)
end

-- Redis may have forgotten tokens that the replica knows to be used: they count.
local used = tonumber(redis.call('GET', tokens) or 0)
if day == today and known > used then
  used = known
  redis.call('SET', tokens, used)
  redis.call('EXPIREAT', tokens, (today + 1) * 86400)
end

-- Of several reasons the one that lasts longest counts: retrying earlier would
-- be useless.
local reason, wait = '', 0
local function reject(why, milliseconds)
  if milliseconds > wait then reason, wait = why, milliseconds end
end

if perMinute > 0 then
  local last = tonumber(redis.call('LINDEX', admissions, -1) or 0)
  if last > now then -- the clock was set back: shift the times before
    local times = redis.call('LRANGE', admissions, 0, -1)
    redis.call('DEL', admissions)
    for _, at in ipairs(times) do redis.call('RPUSH', admissions, at - (last - now)) end
    redis.call('PEXPIRE', admissions, window)
  end
  -- The next chat is admitted when the first of the last perMinute admissions is a
  -- minute old.
  local oldest = redis.call('LINDEX', admissions, -perMinute)
  if oldest then reject('minute', oldest + window - now) end
end
if perDay > 0 then
  if used >= perDay then
    reject('tokens', (today + 1) * 86400000 - now)
  elseif used + tonumber(redis.call('HGET', reserved, 'all') or 0) >= perDay then
    reject('reserved', 1000) -- nobody knows when a chat ends
  end
end
if concurrent > 0 and redis.call('ZCARD', slots) >= concurrent then
  reject('slots', 1000)
end
if reason ~= '' then return {reason, wait, used} end

redis.call('ZADD', slots, now + lasts, lease)
redis.call('PEXPIRE', slots, lasts)
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
