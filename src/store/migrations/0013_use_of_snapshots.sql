-- When a sandbox was last made from a snapshot, or the snapshot itself, give or take an hour; 0: not known, it is older than
-- this column. raw_bytes: what its memory takes when it is not compressed; 0: not known yet, and image_bytes is that.
ALTER TABLE snapshots ADD COLUMN used_us BIGINT NOT NULL DEFAULT 0;
ALTER TABLE snapshots ADD COLUMN raw_bytes BIGINT NOT NULL DEFAULT 0;
