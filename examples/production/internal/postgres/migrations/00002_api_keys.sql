-- +goose Up
CREATE TABLE api_keys (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest       bytea NOT NULL UNIQUE CHECK (octet_length(digest) = 32),
    account      text NOT NULL CHECK (account <> ''),
    label        text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_used_at timestamptz,
    revoked_at   timestamptz
);

CREATE INDEX api_keys_account ON api_keys (account);
