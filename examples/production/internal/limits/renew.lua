-- Lets leases last longer: the first argument is how long, each further one is
-- the lease of the key at its place.
local time = redis.call('TIME')
local lasts = tonumber(ARGV[1])
local ends = time[1] * 1000 + math.floor(time[2] / 1000) + lasts
for i, places in ipairs(KEYS) do
  redis.call('ZADD', places, ends, ARGV[i + 1])
  redis.call('PEXPIRE', places, lasts)
end
return redis.status_reply('OK')
