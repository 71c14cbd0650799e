-- Returns the state of an answer, how it ended for its followers, and its fragments
-- from some number on. Renews the slots of the follower that reads.
local id, follower, lease, next, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

-- A full Redis rejects a script whose first write may need memory. Removing leases
-- needs none, so answers can be read then, too.
lives(followers, lease)
hold(followers, lease, follower)
hold(joined, lease, follower)

local state, first, told = 'lost', 0, ''
local found = redis.call('HMGET', answer, 'id', 'state', 'first', 'until', 'total')
local over = redis.call('HMGET', ending, 'told', 'first')
if over[1] then
  state, told, first = 'over', over[1], tonumber(over[2])
elseif found[1] == id then
  state, first = found[2], tonumber(found[3] or 0)
  local ends = tonumber(found[4])
  if ends > now + lease then redis.call('HSET', answer, 'until', now + lease) end -- the clock was set back
  if (state == 'running' or state == 'large') and ends <= now then state = 'lost' end
end
if state == 'whole' then
  if redis.call('LLEN', fragments) ~= tonumber(found[5]) then -- Redis has lost them
    redis.call('DEL', answer)
    state = 'lost'
  elseif redis.call('PTTL', answer) < lease then -- keep it while it is read
    redis.call('PEXPIRE', answer, lease)
    redis.call('PEXPIRE', fragments, lease)
    redis.call('ZADD', kept, 'XX', now + lease, id)
  end
end
if next < first then state = 'lost' end -- the follower is too slow for an answer that is not kept
if state == 'lost' then return {state, ''} end
return {state, told, unpack(redis.call('LRANGE', fragments, next - first, next - first + most - 1))}
