-- +goose Up
-- As for expires_at: every lookup of a key would wait for this statement.
SET LOCAL lock_timeout = '1s';

-- The id of the key that replaces this one; null for a key that was not rotated.
ALTER TABLE api_keys ADD COLUMN replaced_by bigint;
