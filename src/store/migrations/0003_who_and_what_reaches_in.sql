-- Which key made a sandbox (empty: an administrator), so that its limits count after a restart too; and who may reach its
-- ports, under which name.
ALTER TABLE sandboxes ADD COLUMN key_id TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN is_private SMALLINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN mask_host TEXT NOT NULL DEFAULT '';
