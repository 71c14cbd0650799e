-- Adds the fragments that an answer does not have yet, and renews its lease.
-- Returns the state of the answer, how many fragments it has, and for how long
-- nobody has followed it.
local id, account, news = ARGV[1], ARGV[2], ARGV[3]
local lease, written, unattended = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1'
local resume, most = tonumber(ARGV[7]), tonumber(ARGV[8])
local perFragment, one, perAccount, all = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local texts = 13 -- the first argument that is a text

local found = redis.call('HMGET', answer, 'id', 'state', 'first', 'held')
if found[1] ~= id then return {'lost', 0, 0} end
local state, first, held = found[2], tonumber(found[3] or 0), tonumber(found[4] or 0)
if state ~= 'running' and state ~= 'large' then return {state, 0, 0} end

-- After a failover, Redis may lack fragments that it had.
local have = first + redis.call('LLEN', fragments)
for i = texts + math.max(0, have - written), have >= written and #ARGV or 0 do
  redis.call('RPUSH', fragments, ARGV[i])
  held = held + #ARGV[i] + perFragment
  have = have + 1
end

-- An answer that outgrows its room is no longer kept: its room holds the latest
-- fragments, for clients that follow it closely.
local before = counted(id)
local size = math.max(reserved, overhead + held)
local more = size - before
if state == 'running' and more > 0 and (size > one or sum(account) + more > perAccount or sum('all') + more > all) then
  state = 'large'
end
if state == 'large' then
  size = math.max(reserved, before)
  while overhead + held > size and have - first > 1 do
    held = held - #redis.call('LPOP', fragments) - perFragment
    first = first + 1
  end
end
count(id, account, size, lease)
redis.call('HSET', answer, 'state', state, 'until', now + lease, 'first', first, 'held', held)
redis.call('PEXPIRE', answer, lease)
redis.call('PEXPIRE', fragments, lease)

if lives(followers, lease) > 0 then
  redis.call('PUBLISH', news, id)
  unattended = false
end
if not unattended then
  redis.call('ZREM', alone, id)
  return {state, have, 0}
end

-- Nobody follows it. If an account has too many such answers, those that have been
-- alone for longest end.
redis.call('ZREMRANGEBYSCORE', alone, '-inf', now - resume - lease)
redis.call('ZADD', alone, 'NX', now, id)
redis.call('PEXPIRE', alone, resume + lease)
local since = math.max(0, now - redis.call('ZSCORE', alone, id))
if since == 0 then redis.call('ZADD', alone, now, id) end -- also where the clock was set back
local tooMany = redis.call('ZRANK', alone, id) < redis.call('ZCARD', alone) - most
if state == 'large' or since >= resume or tooMany then
  redis.call('DEL', answer, fragments)
  redis.call('ZREM', alone, id)
  forget(id)
  return {tooMany and 'displaced' or 'abandoned', have, since}
end
return {state, have, since}
