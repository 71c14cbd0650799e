-- Stores how an answer ended, unless it was stopped before. Only its followers
-- learn of the end of an answer that failed or is not kept.
local id, account, news = ARGV[1], ARGV[2], ARGV[3]
local lease, keep, whole, told = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7]

redis.call('ZREM', alone, id)
local found = redis.call('HMGET', answer, 'id', 'state', 'first', 'held')
if found[1] ~= id or (found[2] ~= 'running' and found[2] ~= 'large') then return redis.status_reply('OK') end
if whole and found[2] == 'running' then
  redis.call('HSET', answer, 'state', 'whole', 'total', redis.call('LLEN', fragments))
  redis.call('PEXPIRE', answer, keep)
  redis.call('PEXPIRE', fragments, keep)
  count(id, account, overhead + (found[4] or 0), keep)
else
  redis.call('DEL', answer)
  redis.call('HSET', ending, 'told', told, 'first', found[3] or 0)
  redis.call('PEXPIRE', ending, lease)
  redis.call('PEXPIRE', fragments, lease)
  count(id, account, overhead + (found[4] or 0), lease)
end
redis.call('PUBLISH', news, id)
return redis.status_reply('OK')
