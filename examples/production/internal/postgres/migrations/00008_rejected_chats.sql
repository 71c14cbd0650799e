-- +goose Up
-- As for api_keys: storing usage would wait for this statement.
SET LOCAL lock_timeout = '1s';

-- A row of rejected chats, which asked no model, stands for as many as an account
-- has had rejected for the same reason within some seconds. The reason is empty for
-- a chat that reached a model.
ALTER TABLE usage
    ADD COLUMN chats    bigint NOT NULL DEFAULT 1,
    ADD COLUMN rejected text NOT NULL DEFAULT '';
