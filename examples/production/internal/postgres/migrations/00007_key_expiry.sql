-- +goose Up
-- Nobody waits longer than this: a long query on the table, such as a backup,
-- would hold up this statement, and this statement every lookup of a key. It
-- fails instead, and can be run again.
SET LOCAL lock_timeout = '1s';

-- Null for a key that does not expire.
ALTER TABLE api_keys ADD COLUMN expires_at timestamptz;
