-- +goose Up
-- Whether the runtime did not report all tokens, so that they are estimated from
-- the texts.
ALTER TABLE usage ADD COLUMN tokens_estimated boolean NOT NULL DEFAULT false;

-- The longest answer of the bot; null for no limit.
ALTER TABLE bots ADD COLUMN max_tokens bigint CHECK (max_tokens BETWEEN 1 AND 2147483647);
