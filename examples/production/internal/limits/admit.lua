-- Takes a place for one chat of an account, or says why there is none, and for
-- how many milliseconds. A chat that is refused uses up nothing.
local admissions, tokens, places = KEYS[1], KEYS[2], KEYS[3]
local lease, lasts, window = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local perMinute, perDay, atOnce = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Of several reasons the one that lasts longest counts: to come back earlier
-- would be of no use.
local reason, wait = '', 0
local function refuse(why, milliseconds)
  if milliseconds > wait then reason, wait = why, milliseconds end
end

if perMinute > 0 then
  -- As many as the limit were admitted since this one: the next when it is a
  -- minute old.
  local oldest = redis.call('LINDEX', admissions, -perMinute)
  if oldest then refuse('minute', math.min(oldest + window - now, window)) end
end
if perDay > 0 and tonumber(redis.call('GET', tokens) or 0) >= perDay then
  refuse('tokens', redis.call('PTTL', tokens))
end
redis.call('ZREMRANGEBYSCORE', places, '-inf', now)
if atOnce > 0 and redis.call('ZCARD', places) >= atOnce then
  refuse('places', 1000) -- nobody knows when a chat ends
end
if reason ~= '' then return {reason, wait} end

redis.call('ZADD', places, now + lasts, lease)
redis.call('PEXPIRE', places, lasts)
if perMinute > 0 then
  redis.call('RPUSH', admissions, now)
  redis.call('LTRIM', admissions, -perMinute, -1)
  redis.call('PEXPIRE', admissions, window)
end
return {'', 0}
