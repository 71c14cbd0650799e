-- +goose Up
-- As for rejected: storing usage would wait for this statement.
SET LOCAL lock_timeout = '1s';

-- A row of joins stands for the requests of an account that joined answers which others
-- had asked for, within some seconds. It counts no chat, and has no tokens.
ALTER TABLE usage ADD COLUMN joins bigint NOT NULL DEFAULT 0;
