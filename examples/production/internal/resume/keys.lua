-- The beginning of every script: its keys, the time, and the accounting of memory.
local answer, fragments, ending, followers, alone, joined, kept, sizes, bytes = unpack(KEYS)

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- The memory of an answer besides its fragments, and the least that an answer in
-- progress counts as.
local overhead, reserved = 1000, 16384

local function counted(id)
  local size, account = string.match(redis.call('HGET', sizes, id) or '', '^(%d+) (.*)$')
  return tonumber(size or 0), account
end

local function sum(of) return tonumber(redis.call('HGET', bytes, of) or 0) end

local function add(of, size)
  if redis.call('HINCRBY', bytes, of, size) <= 0 then redis.call('HDEL', bytes, of) end
end

-- forget stops counting an answer. A full Redis allows its first write.
local function forget(id)
  local size, account = counted(id)
  if not account then return end
  redis.call('HDEL', sizes, id)
  redis.call('ZREM', kept, id)
  add('all', -size)
  add(account, -size)
end

-- count sets the counted size of an answer, for lasts milliseconds.
local function count(id, account, size, lasts)
  local before = counted(id)
  add('all', size - before)
  add(account, size - before)
  redis.call('HSET', sizes, id, string.format('%d ', size) .. account)
  redis.call('ZADD', kept, now + lasts, id)
end

-- lives removes expired leases from a set, and those that are too long because the
-- clock was set back, and returns how many remain.
local function lives(leases, lease)
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
  redis.call('ZREMRANGEBYSCORE', leases, '(' .. (now + lease), '+inf')
  return redis.call('ZCARD', leases)
end

local function hold(leases, lease, who)
  redis.call('ZADD', leases, now + lease, who)
  redis.call('PEXPIRE', leases, lease)
end
