-- +goose Up
-- Tokens that the runtime did not report, or not all of them: they are reckoned
-- from the texts.
ALTER TABLE usage ADD COLUMN tokens_estimated boolean NOT NULL DEFAULT false;

-- How long an answer of the bot may be; null for as long as the model likes.
ALTER TABLE bots ADD COLUMN max_tokens bigint CHECK (max_tokens BETWEEN 1 AND 2147483647);
