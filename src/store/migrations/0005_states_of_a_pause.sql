-- A sandbox can be paused, copied and resumed. Neither SQLite nor a portable statement changes a CHECK, so the table is
-- made anew.
CREATE TABLE sandboxes_new (
    id             TEXT PRIMARY KEY,
    team_id        TEXT NOT NULL,
    template_id    TEXT NOT NULL,
    alias          TEXT NOT NULL,
    guestd_version TEXT NOT NULL,
    state          TEXT NOT NULL
                   CHECK (state IN ('starting', 'running', 'pausing', 'paused', 'resuming', 'snapshotting')),
    metadata       TEXT NOT NULL,
    cpu_count      BIGINT NOT NULL,
    memory_mb      BIGINT NOT NULL,
    disk_mb        BIGINT NOT NULL,
    internet       SMALLINT NOT NULL,
    started_us     BIGINT NOT NULL,
    deadline_us    BIGINT NOT NULL,
    revision       BIGINT NOT NULL,
    key_id         TEXT NOT NULL,
    is_private     SMALLINT NOT NULL,
    mask_host      TEXT NOT NULL,
    open_code      SMALLINT NOT NULL
);
INSERT INTO sandboxes_new (id, team_id, template_id, alias, guestd_version, state, metadata, cpu_count, memory_mb, disk_mb,
                           internet, started_us, deadline_us, revision, key_id, is_private, mask_host, open_code)
    SELECT id, team_id, template_id, alias, guestd_version, state, metadata, cpu_count, memory_mb, disk_mb,
           internet, started_us, deadline_us, revision, key_id, is_private, mask_host, open_code FROM sandboxes;
DROP TABLE sandboxes;
ALTER TABLE sandboxes_new RENAME TO sandboxes;
