-- Makes an id the answer of a name that has none, or takes a slot among the
-- followers of the one that it has, or returns why not.
local id, body, follower, account, prefix = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lease, clients, atOnce, burst = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local perAccount, all = tonumber(ARGV[10]), tonumber(ARGV[11])

-- join makes the request a follower of an answer, or returns why it cannot be one.
local function join(old, born, joins)
  followers = prefix .. 'followers:' .. old
  if joins >= burst + math.max(0, now - born) / 1000 then return 'often' end
  if lives(followers, lease) >= clients then return 'crowded' end
  if lives(joined, lease) >= atOnce and atOnce > 0 then return 'places' end
  redis.call('HINCRBY', answer, 'joins', 1)
  hold(followers, lease, follower)
  hold(joined, lease, follower)
  redis.call('ZREM', alone, old)
  return 'answer'
end

local found = redis.call('HMGET', answer, 'id', 'body', 'state', 'until', 'born', 'joins')
if found[1] then
  local ends, born = tonumber(found[4]), tonumber(found[5])
  if ends > now + lease then -- the clock was set back
    ends, born = now + lease, math.min(born, now)
    redis.call('HSET', answer, 'until', ends, 'born', born)
  end
  local running = ends > now
  if found[2] ~= body then return {'other', '', 0} end
  if found[3] == 'stopped' then return {'stopped', '', 0} end
  if found[3] == 'large' and running then return {'large', '', 0} end
  if found[3] == 'whole' or running then
    return {join(found[1], born, tonumber(found[6])), found[1], 0}
  end
end

-- Expired answers no longer count.
for _, old in ipairs(redis.call('ZRANGEBYSCORE', kept, '-inf', now, 'LIMIT', 0, 100)) do forget(old) end
if sum('all') + reserved > all then return {'full', '', sum('all')} end
if sum(account) + reserved > perAccount then return {'share', '', sum('all')} end
count(id, account, reserved, lease)
redis.call('DEL', answer)
redis.call('HSET', answer, 'id', id, 'body', body, 'state', 'running', 'until', now + lease, 'born', now, 'joins', 0)
redis.call('PEXPIRE', answer, lease)
return {'nothing', id, sum('all')}
