-- +goose Up
-- As the runtime counts them; null where it does not.
ALTER TABLE usage
    ADD COLUMN prompt_tokens     bigint,
    ADD COLUMN completion_tokens bigint;
