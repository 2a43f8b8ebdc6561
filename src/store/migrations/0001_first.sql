-- Everything the first release remembers. Plain SQL that SQLite and PostgreSQL both take: ids and hashes are text, times
-- are microseconds since 1970, truth is 0 or 1. '' in template_aliases.owner is everybody; it is not NULL because NULLs
-- are all different from each other to a unique index.

CREATE TABLE settings (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE teams (
    id         TEXT PRIMARY KEY,
    slug       TEXT NOT NULL UNIQUE,
    name       TEXT NOT NULL,
    is_default SMALLINT NOT NULL,
    created_us BIGINT NOT NULL
);

-- Of a key only the hash is kept, with as much of its text as helps people tell their keys apart.
CREATE TABLE api_keys (
    id           TEXT PRIMARY KEY,
    team_id      TEXT NOT NULL REFERENCES teams (id),
    name         TEXT NOT NULL,
    hash         TEXT NOT NULL UNIQUE,
    mask_prefix  TEXT NOT NULL,
    mask_suffix  TEXT NOT NULL,
    created_us   BIGINT NOT NULL,
    last_used_us BIGINT,
    revoked_us   BIGINT
);
CREATE INDEX api_keys_of_team ON api_keys (team_id, created_us);

-- team_id NULL: nobody's, hence everybody's.
CREATE TABLE templates (
    id             TEXT PRIMARY KEY,
    team_id        TEXT REFERENCES teams (id),
    cpu_count      BIGINT NOT NULL,
    memory_mb      BIGINT NOT NULL,
    disk_mb        BIGINT NOT NULL,
    guestd_version TEXT NOT NULL,
    created_us     BIGINT NOT NULL
);

CREATE TABLE template_layers (
    template_id TEXT NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    position    BIGINT NOT NULL,
    layer       TEXT NOT NULL,
    PRIMARY KEY (template_id, position)
);

CREATE TABLE template_aliases (
    owner       TEXT NOT NULL,
    alias       TEXT NOT NULL,
    template_id TEXT NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    PRIMARY KEY (owner, alias)
);
CREATE INDEX template_aliases_of_template ON template_aliases (template_id);

-- No token: it is derived from the id and a seed in settings. No environment: it may hold secrets and only guestd needs it.
CREATE TABLE sandboxes (
    id             TEXT PRIMARY KEY,
    team_id        TEXT NOT NULL,
    template_id    TEXT NOT NULL,
    alias          TEXT NOT NULL,
    guestd_version TEXT NOT NULL,
    state          TEXT NOT NULL CHECK (state IN ('starting', 'running')),
    metadata       TEXT NOT NULL,
    cpu_count      BIGINT NOT NULL,
    memory_mb      BIGINT NOT NULL,
    disk_mb        BIGINT NOT NULL,
    internet       SMALLINT NOT NULL,
    started_us     BIGINT NOT NULL,
    deadline_us    BIGINT NOT NULL,
    revision       BIGINT NOT NULL
);

CREATE TABLE events (
    id          TEXT PRIMARY KEY,
    type        TEXT NOT NULL,
    sandbox_id  TEXT NOT NULL,
    team_id     TEXT NOT NULL,
    template_id TEXT NOT NULL,
    at_us       BIGINT NOT NULL,
    data        TEXT NOT NULL
);
CREATE INDEX events_of_sandbox ON events (sandbox_id, at_us);
CREATE INDEX events_by_age ON events (at_us);

-- A create that its client may send again. The answer is rebuilt from these columns, so no token lies here either.
CREATE TABLE repeats (
    team_id        TEXT NOT NULL,
    repeat_key     TEXT NOT NULL,
    request_hash   TEXT NOT NULL,
    state          TEXT NOT NULL CHECK (state IN ('running', 'done', 'lost')),
    sandbox_id     TEXT NOT NULL,
    template_id    TEXT NOT NULL,
    alias          TEXT NOT NULL,
    guestd_version TEXT NOT NULL,
    created_us     BIGINT NOT NULL,
    PRIMARY KEY (team_id, repeat_key)
);
CREATE INDEX repeats_by_age ON repeats (created_us);
