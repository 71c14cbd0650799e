-- +goose Up
-- Null means the limit of everybody else. In the row without an account, which is
-- for everybody else, it means no limit. 0 always means no limit.
CREATE TABLE account_limits (
    account          text PRIMARY KEY,
    chats_per_minute bigint CHECK (chats_per_minute >= 0),
    tokens_per_day   bigint CHECK (tokens_per_day >= 0),
    chats_at_once    bigint CHECK (chats_at_once >= 0)
);
