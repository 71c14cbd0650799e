-- +goose Up
CREATE TABLE usage (
    id                text PRIMARY KEY,
    ended_at          timestamptz NOT NULL,
    request_id        text NOT NULL,
    account           text NOT NULL,
    user_id           text NOT NULL,
    bot_uid           text NOT NULL,
    model             text NOT NULL,
    stream            boolean NOT NULL,
    status            integer NOT NULL,
    complete          boolean NOT NULL,
    fragments         integer NOT NULL,
    bytes             bigint NOT NULL,
    first_fragment_ms double precision,
    duration_ms       double precision NOT NULL
);

-- For finding abuse: who used how much lately.
CREATE INDEX usage_user ON usage (account, user_id, ended_at);
CREATE INDEX usage_ended ON usage (ended_at);
