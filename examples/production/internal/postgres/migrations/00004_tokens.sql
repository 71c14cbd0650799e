-- +goose Up
-- As the runtime reports them; null if it does not.
ALTER TABLE usage
    ADD COLUMN prompt_tokens     bigint,
    ADD COLUMN completion_tokens bigint;
