-- A paused sandbox can be resumed: how long its create wanted it to live, what happens at its deadline and by traffic, its
-- layers (ids separated by commas, lowest first; empty for a sandbox from before this column), and of a paused one whether
-- its processes are kept, whether guestd was silent, and its environment (a JSON object; empty while it runs).
ALTER TABLE sandboxes ADD COLUMN timeout_s BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN auto_pause SMALLINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN keep_memory SMALLINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN auto_resume SMALLINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN layers TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN has_memory SMALLINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN was_silent SMALLINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN envs TEXT NOT NULL DEFAULT '';
