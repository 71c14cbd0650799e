-- Settles one batch of a replica, once, however often it is sent: for each chat,
-- counts the tokens that it has used since the last batch. If the chat goes on, its
-- lease is renewed, and it keeps the rest of its reservation.
-- KEYS: the replica's mark, then tokens, slots and reserved of each chat.
-- ARGV: the number of the batch, how long leases last, how long a mark lasts, then
-- for each chat: lease, tokens, reservation, 1 if it goes on, a day, and what the
-- replica knew its account to have used on that day before this batch. Returns how
-- many tokens the account of each chat has used today, 0 if that has not changed.
local mark, batch = KEYS[1], ARGV[1]
local lasts, markLasts = tonumber(ARGV[2]), ARGV[3]

-- A batch that was cancelled may arrive after the one that replaced it.
local last = tonumber(redis.call('GET', mark) or 0)
if last >= tonumber(batch) then return {} end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local today = math.floor(time[1] / 86400)
local midnight = (today + 1) * 86400

-- A full Redis runs a script that begins with this command.
redis.call('DEL', mark)
redis.call('SET', mark, batch, 'PX', markLasts)

-- What the replica knew counts if Redis has forgotten it, or if the key is not a
-- number.
local function add(tokens, used, day, known)
  if day ~= today then known = 0 end
  local before = redis.pcall('GET', tokens)
  if known > (type(before) == 'string' and tonumber(before) or 0) then redis.pcall('SET', tokens, known) end
  local total = redis.pcall('INCRBY', tokens, used)
  if type(total) ~= 'number' then
    redis.pcall('SET', tokens, known)
    total = redis.pcall('INCRBY', tokens, used)
  end
  redis.pcall('EXPIREAT', tokens, midnight)
  return type(total) == 'number' and total or 0
end

local totals = {}
-- A failure with one chat, such as a key of another type, must not affect the
-- others.
for i = 0, (#KEYS - 1) / 3 - 1 do
  local tokens, slots, reserved = KEYS[2 + 3 * i], KEYS[3 + 3 * i], KEYS[4 + 3 * i]
  local lease, used, keep, goesOn, day, known = unpack(ARGV, 4 + 6 * i, 9 + 6 * i)
  keep = tonumber(keep)
  totals[i + 1] = 0
  if used ~= '0' then
    totals[i + 1] = add(tokens, used, tonumber(day), tonumber(known))
  end
  if goesOn == '1' then
    redis.pcall('ZADD', slots, now + lasts, lease)
    redis.pcall('PEXPIRE', slots, lasts)
  elseif lease ~= '' then
    redis.pcall('ZREM', slots, lease)
  end
  local held = redis.pcall('HGET', reserved, lease)
  held = type(held) == 'string' and tonumber(held) or 0
  if keep ~= held then
    if keep > 0 then
      redis.pcall('HSET', reserved, lease, keep)
    else
      redis.pcall('HDEL', reserved, lease)
    end
    redis.pcall('HINCRBY', reserved, 'all', keep - held)
  end
  if goesOn == '1' then redis.pcall('PEXPIRE', reserved, lasts) end
end
return totals
