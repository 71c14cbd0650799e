-- Says whose the keys of this prefix are, makes them this deployment's if they
-- are nobody's, and says whether Redis is full.
local owner, scratch = KEYS[1], KEYS[2]
local name, lasts = ARGV[1], ARGV[2]

local found = redis.call('GET', owner)
if found and found ~= name then return {found, 0} end

local full = 0
local tried = redis.pcall('SET', scratch, '', 'PX', 1000)
if tried.err then
  if not string.find(tried.err, 'OOM') then return tried end
  full = 1
end

-- Redis takes a DEL though it is full, and what follows in the same script, too:
-- that is how limits have room when nothing else has.
redis.call('DEL', scratch)
redis.call('SET', owner, name, 'PX', lasts)
return {name, full}
