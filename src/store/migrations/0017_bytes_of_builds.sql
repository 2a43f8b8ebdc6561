-- What it takes on disk, and whose it is: both have caps.
ALTER TABLE build_kept ADD COLUMN team_id TEXT NOT NULL DEFAULT '';
ALTER TABLE build_kept ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0;
UPDATE build_kept SET
    team_id = COALESCE((SELECT MAX(team_id) FROM cached_steps WHERE cached_steps.kept_id = build_kept.kept_id), ''),
    bytes = COALESCE((SELECT MAX(bytes) FROM cached_steps WHERE cached_steps.kept_id = build_kept.kept_id), 0);
CREATE INDEX build_kept_of_team ON build_kept (node_id, team_id);
