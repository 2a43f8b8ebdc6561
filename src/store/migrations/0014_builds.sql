-- Templates that teams build. One is on the disk of the node that has built it, and each node sees its own. removed_us: it
-- is gone, and its id is never used again. spawned_us 0: no sandbox yet.
CREATE TABLE built_templates (
    id          TEXT PRIMARY KEY,
    team_id     TEXT NOT NULL REFERENCES teams (id),
    node_id     TEXT NOT NULL,
    is_public   SMALLINT NOT NULL DEFAULT 0,
    created_us  BIGINT NOT NULL,
    updated_us  BIGINT NOT NULL,
    spawned_us  BIGINT NOT NULL DEFAULT 0,
    spawn_count BIGINT NOT NULL DEFAULT 0,
    build_count BIGINT NOT NULL DEFAULT 0,
    removed_us  BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX built_templates_of_team ON built_templates (team_id, created_us);

-- owner is a team's id, or '' for everybody.
CREATE TABLE built_aliases (
    node_id     TEXT NOT NULL,
    owner       TEXT NOT NULL,
    alias       TEXT NOT NULL,
    template_id TEXT NOT NULL REFERENCES built_templates (id) ON DELETE CASCADE,
    PRIMARY KEY (node_id, owner, alias)
);
CREATE INDEX built_aliases_of_template ON built_aliases (template_id);

-- tags and layers are separated by commas, layers lowest first; an empty text is "none", and so is the time 0. log_us is the
-- time of the last line of its log.
CREATE TABLE builds (
    id             TEXT PRIMARY KEY,
    template_id    TEXT NOT NULL REFERENCES built_templates (id) ON DELETE CASCADE,
    team_id        TEXT NOT NULL,
    node_id        TEXT NOT NULL,
    state          TEXT NOT NULL CHECK (state IN ('waiting', 'building', 'ready', 'error')),
    reason         TEXT NOT NULL DEFAULT '',
    reason_step    TEXT NOT NULL DEFAULT '',
    cpu_count      BIGINT NOT NULL,
    memory_mb      BIGINT NOT NULL,
    disk_mb        BIGINT NOT NULL DEFAULT 0,
    guestd_version TEXT NOT NULL,
    created_us     BIGINT NOT NULL,
    updated_us     BIGINT NOT NULL,
    finished_us    BIGINT NOT NULL DEFAULT 0,
    tags           TEXT NOT NULL,
    layers         TEXT NOT NULL DEFAULT '',
    image          TEXT NOT NULL DEFAULT '',
    run_user       TEXT NOT NULL DEFAULT '',
    run_workdir    TEXT NOT NULL DEFAULT '',
    run_envs       TEXT NOT NULL DEFAULT '',
    start_cmd      TEXT NOT NULL DEFAULT '',
    ready_cmd      TEXT NOT NULL DEFAULT '',
    start_user     TEXT NOT NULL DEFAULT '',
    start_workdir  TEXT NOT NULL DEFAULT '',
    start_envs     TEXT NOT NULL DEFAULT '',
    log_bytes      BIGINT NOT NULL DEFAULT 0,
    log_lines      BIGINT NOT NULL DEFAULT 0,
    log_us         BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX builds_of_template ON builds (template_id, created_us);
CREATE INDEX builds_of_team ON builds (team_id, state);

-- A history: a tag means its newest assignment whose build is ready. Within a template no two have the same time.
CREATE TABLE build_tags (
    id          TEXT PRIMARY KEY,
    template_id TEXT NOT NULL REFERENCES built_templates (id) ON DELETE CASCADE,
    tag         TEXT NOT NULL,
    build_id    TEXT NOT NULL REFERENCES builds (id) ON DELETE CASCADE,
    assigned_us BIGINT NOT NULL
);
CREATE UNIQUE INDEX build_tags_of_template ON build_tags (template_id, tag, assigned_us);
CREATE INDEX build_tags_of_build ON build_tags (build_id);

-- position: 0, 1, 2… of a build.
CREATE TABLE build_lines (
    build_id TEXT NOT NULL REFERENCES builds (id) ON DELETE CASCADE,
    position BIGINT NOT NULL,
    at_us    BIGINT NOT NULL,
    level    SMALLINT NOT NULL,
    step     TEXT NOT NULL,
    line     TEXT NOT NULL,
    PRIMARY KEY (build_id, position)
);

-- What steps have made, by key. kept_id '': the step has made no layer.
CREATE TABLE cached_steps (
    node_id     TEXT NOT NULL,
    team_id     TEXT NOT NULL,
    step_key    TEXT NOT NULL,
    kept_id     TEXT NOT NULL,
    layers      TEXT NOT NULL,
    run_user    TEXT NOT NULL,
    run_workdir TEXT NOT NULL,
    run_envs    TEXT NOT NULL,
    bytes       BIGINT NOT NULL,
    created_us  BIGINT NOT NULL,
    used_us     BIGINT NOT NULL,
    PRIMARY KEY (node_id, team_id, step_key)
);

-- What the driver keeps for builds and steps, until it was dropped: rows that refer to it may go before.
CREATE TABLE build_kept (
    kept_id TEXT PRIMARY KEY,
    node_id TEXT NOT NULL
);
