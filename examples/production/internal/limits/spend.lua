-- Counts tokens until the day ends, in UTC.
redis.call('INCRBY', KEYS[1], ARGV[1])
if redis.call('TTL', KEYS[1]) < 0 then
  local now = tonumber(redis.call('TIME')[1])
  redis.call('EXPIREAT', KEYS[1], now - now % 86400 + 86400)
end
return redis.status_reply('OK')
