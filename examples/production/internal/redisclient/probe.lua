-- Returns the owner of this prefix, which becomes this deployment if there is none,
-- and whether Redis is full.
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

-- A full Redis accepts DEL, and then all writes of the script: that is how
-- limits work when nothing else has room.
redis.call('DEL', scratch)
redis.call('SET', owner, name, 'PX', lasts)
return {name, full}
