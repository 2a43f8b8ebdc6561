-- A snapshot of a sandbox: a build of a template that the team has made. kept_id is its layer, and the directory with the
-- image of its processes; layers are its layer ids, lowest first, separated by commas. name '' is "none". removed: no
-- request finds it any more, and the driver has still to drop what it kept.
CREATE TABLE snapshots (
    kept_id            TEXT PRIMARY KEY,
    template_id        TEXT NOT NULL,
    name               TEXT NOT NULL,
    tag                TEXT NOT NULL,
    team_id            TEXT NOT NULL,
    sandbox_id         TEXT NOT NULL,
    source_template_id TEXT NOT NULL,
    cpu_count          BIGINT NOT NULL,
    memory_mb          BIGINT NOT NULL,
    disk_mb            BIGINT NOT NULL,
    guestd_version     TEXT NOT NULL,
    created_us         BIGINT NOT NULL,
    layers             TEXT NOT NULL,
    has_memory         SMALLINT NOT NULL,
    layer_bytes        BIGINT NOT NULL,
    image_bytes        BIGINT NOT NULL,
    node_id            TEXT NOT NULL,
    removed            SMALLINT NOT NULL DEFAULT 0
);
CREATE INDEX snapshots_of_team ON snapshots (team_id, created_us);
CREATE INDEX snapshots_of_template ON snapshots (template_id);
-- Is a sandbox based on it?
CREATE INDEX sandboxes_of_template ON sandboxes (template_id);
