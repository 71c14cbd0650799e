-- +goose Up
CREATE TABLE bots (
    uid             text PRIMARY KEY,
    slug            text NOT NULL,
    name            text NOT NULL,
    description     text NOT NULL DEFAULT '',
    welcome_message text NOT NULL DEFAULT '',
    model           text NOT NULL,
    avatar_url      text NOT NULL DEFAULT '',

    published       boolean NOT NULL DEFAULT false,
    position        integer NOT NULL,

    -- Internal: these never reach a client.
    instructions    text NOT NULL DEFAULT '',
    runtime         text NOT NULL DEFAULT '',
    temperature     double precision CHECK (temperature BETWEEN 0 AND 2),

    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),

    -- Deferred, so that one import can swap the slugs of two bots.
    CONSTRAINT bots_slug_unique UNIQUE (slug) DEFERRABLE INITIALLY DEFERRED
);

CREATE INDEX bots_listing ON bots (position, slug) WHERE published;
