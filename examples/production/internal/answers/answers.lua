-- The rules of resume.Memory, by the clock of Redis. One script runs each method
-- of the store; the last lines say which.
local prefix, owner, id, rules = ARGV[2], ARGV[3], ARGV[4], cjson.decode(ARGV[5])
local answer = KEYS[1] -- what a claim finds
local apart = prefix .. 'apart:' .. id -- what only the readers of an answer find
local following, running, all = prefix .. 'following:' .. owner, prefix .. 'running:' .. owner, prefix .. 'running'
local sizes, bytes, kept = prefix .. 'sizes', prefix .. 'bytes', prefix .. 'kept'

-- What an answer counts as besides its fragments, and at least while it runs. How
-- often it may be joined at first.
local overhead, least, burst = 1000, 16384, 20

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local fields = {'id', 'body', 'state', 'born', 'joins', 'held', 'total', 'unattended', 'ending'}

-- load returns the answer in a hash, or nil.
local function load(at)
  local found, a = redis.call('HMGET', at, unpack(fields)), {at = at}
  for i, field in ipairs(fields) do a[field] = found[i] end
  if not a.id then return nil end
  a.fragments, a.readers = prefix .. 'fragments:' .. a.id, prefix .. 'readers:' .. a.id
  a.goesOn = a.state == 'running' or a.state == 'outgrown'
  return a
end

-- find returns the answer with the id of a call, or nil.
local function find()
  local a = load(answer)
  if a and a.id == id then return a end
  return load(apart)
end

-- count sets how many bytes the limits count for an answer.
local function count(of, size)
  local before, whose = string.match(redis.call('HGET', sizes, of) or '0 ' .. owner, '^(%d+) (.*)$')
  if size == 0 then
    redis.call('ZREM', kept, of)
    redis.call('HDEL', sizes, of)
  elseif size ~= tonumber(before) then
    redis.call('HSET', sizes, of, string.format('%d ', size) .. whose)
  end
  if size == tonumber(before) then return end
  for _, sum in ipairs({whose, 'all'}) do
    if redis.call('HINCRBY', bytes, sum, size - before) <= 0 then redis.call('HDEL', bytes, sum) end
  end
end

local function counted(of) return tonumber(redis.call('HGET', bytes, of) or 0) end

-- full returns which limit leaves no room for more bytes, or nil.
local function full(more)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', kept, '-inf', now, 'LIMIT', 0, 100)) do count(old, 0) end
  if counted('all') + more > rules.all_bytes then return 'all are full' end
  if counted(owner) + more > rules.owner_bytes then return 'the account is full' end
end

-- expire sets when an answer is forgotten.
local function expire(a, lasts)
  redis.call('PEXPIRE', a.at, lasts)
  redis.call('PEXPIRE', a.fragments, lasts)
  redis.call('ZADD', kept, now + lasts, a.id)
end

-- live returns how many hold a lease. None lasts longer than a lease: the clock
-- may have been set back.
local function live(leases)
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
  for _, late in ipairs(redis.call('ZRANGEBYSCORE', leases, '(' .. now + rules.lease, '+inf')) do
    redis.call('ZADD', leases, now + rules.lease, late)
  end
  return redis.call('ZCARD', leases)
end

-- hold gives a lease, or renews the one that there is.
local function hold(leases, holder)
  redis.call('ZADD', leases, now + rules.lease, holder)
  redis.call('PEXPIRE', leases, rules.lease)
end

-- attend gives a reader its slot, or renews it.
local function attend(a, reader)
  hold(a.readers, reader)
  hold(following, reader)
  if a.unattended then redis.call('HDEL', a.at, 'unattended') end
end

-- free takes the key from an answer: the next claim does not find it.
local function free(a)
  if a.at ~= answer then return end
  a.at = prefix .. 'apart:' .. a.id
  redis.call('RENAME', answer, a.at)
end

-- drop forgets an answer.
local function drop(a)
  local readers = redis.call('ZRANGEBYSCORE', a.readers, '-inf', '+inf')
  if #readers > 0 then redis.call('ZREM', following, unpack(readers)) end
  redis.call('DEL', a.at, a.fragments, a.readers)
  count(a.id, 0)
end

-- append adds fragments, unless the answer outgrows its room by them.
local function append(a, texts)
  local held = a.held
  for _, text in ipairs(texts) do held = held + #text + rules.fragment_bytes end
  local size = math.max(overhead + held, least)
  local more = size - math.max(overhead + a.held, least)
  if size > rules.answer_bytes or more > 0 and full(more) then
    a.state = 'outgrown'
    redis.call('HSET', a.at, 'state', a.state)
    return
  end
  redis.call('RPUSH', a.fragments, unpack(texts))
  redis.call('HSET', a.at, 'held', held)
  count(a.id, size)
end

local methods = {}

local function start(old, body, most, isFull)
  if live(running) >= most or live(all) >= rules.running then return {'too many running'} end
  local why = isFull and 'all are full' or full(least)
  if why then return {'no room', '', why} end
  if old then free(old) end
  redis.call('HSET', answer, 'id', id, 'body', body, 'state', 'running', 'born', now, 'joins', 0, 'held', 0)
  expire(load(answer), rules.lease)
  count(id, least)
  hold(running, id)
  hold(all, id)
  return {'started', id, '', counted('all')}
end

local function join(a, most)
  if a.joins + 0 >= burst + math.floor(math.max(0, now - a.born) / 1000) then return {'too many joins'} end
  if live(a.readers) >= rules.readers or live(following) >= most then return {'too many readers'} end
  redis.call('HINCRBY', a.at, 'joins', 1)
  attend(a, id)
  return {'found', a.id, '', counted('all')}
end

function methods.claim(body, only, mostRunning, mostReaders, isFull)
  local a = load(answer)
  if a and body ~= '' and body ~= a.body then return {'other body'} end
  if a and a.state == 'stopped' then return {'stopped'} end
  if a and a.state ~= 'outgrown' then return join(a, tonumber(mostReaders)) end
  if only == '1' then return {'nothing'} end
  return start(a, body, tonumber(mostRunning), isFull == '1')
end

function methods.add(from, attended, ...)
  from = tonumber(from)
  hold(running, id)
  hold(all, id)
  local a = find()
  if not a then return {'lost', 0, 0} end
  if not a.goesOn then return {a.state, 0, 0} end
  local readers, have = live(a.readers), redis.call('LLEN', a.fragments) -- fewer than before if Redis has failed over
  local texts = {select(math.max(0, have - from) + 1, ...)}
  if a.state == 'running' and from <= have and #texts > 0 then
    append(a, texts)
    have = redis.call('LLEN', a.fragments)
  end
  expire(a, rules.lease)
  local unattended = tonumber(a.unattended)
  if attended == '1' or readers > 0 then
    if unattended then redis.call('HDEL', a.at, 'unattended') end
    return {a.state, have, 0}
  end
  if not unattended or unattended > now then -- or the clock was set back
    unattended = now
    redis.call('HSET', a.at, 'unattended', unattended)
  end
  if now - unattended >= rules.abandon then
    drop(a)
    return {'lost', have, now - unattended}
  end
  return {a.state, have, now - unattended}
end

function methods.finish(fragments, failed, ending)
  local a, keep = find(), rules.keep
  if not a then return {'lost'} end
  if not a.goesOn then return {a.state} end
  fragments = tonumber(fragments)
  if fragments < 0 or a.state == 'running' and failed ~= '1' and redis.call('LLEN', a.fragments) ~= fragments then
    drop(a)
    return {'lost'}
  elseif a.state == 'outgrown' then
    free(a)
    expire(a, rules.lease)
    return {'lost'} -- but for its present readers
  elseif failed == '1' then
    free(a)
    a.state, keep = 'failed', rules.lease
    redis.call('HSET', a.at, 'state', a.state, 'ending', ending)
  else
    a.state = 'complete'
    redis.call('HSET', a.at, 'state', a.state, 'total', fragments)
  end
  count(a.id, overhead + a.held)
  expire(a, keep)
  return {a.state}
end

function methods.stop()
  local a = load(answer)
  if a and a.goesOn then
    redis.call('DEL', a.fragments)
    redis.call('HSET', a.at, 'state', 'stopped')
    count(a.id, overhead)
    expire(a, rules.keep)
    redis.call('PUBLISH', prefix .. 'stopped', a.id)
  end
  return {a and 1 or 0}
end

function methods.read(reader, from, most)
  local a = find()
  if not a then return {'lost', ''} end
  if a.total and redis.call('LLEN', a.fragments) ~= tonumber(a.total) then -- Redis has failed over, and has lost some
    drop(a)
    return {'lost', ''}
  end
  if reader ~= '' then attend(a, reader) end
  local left = redis.call('PTTL', a.at)
  if a.state ~= 'running' and left < rules.lease or a.goesOn and left > rules.lease then -- it is read, or the clock was set back
    expire(a, rules.lease)
  end
  return {a.state, a.ending or '', unpack(redis.call('LRANGE', a.fragments, from, from + most))}
end

function methods.leave(holder)
  if holder == id then
    redis.call('ZREM', running, id)
    redis.call('ZREM', all, id)
  else
    redis.call('ZREM', following, holder)
    redis.call('ZREM', prefix .. 'readers:' .. id, holder)
  end
end

-- A full Redis allows what begins with a command that frees memory: only a claim
-- that starts an answer is rejected then.
if ARGV[1] ~= 'claim' then redis.call('ZREM', kept, '') end
return methods[ARGV[1]](unpack(ARGV, 6)) or {}
