-- Clients of old send no access token with run_code: a sandbox that was asked for without `secure` wants none there.
ALTER TABLE sandboxes ADD COLUMN open_code SMALLINT NOT NULL DEFAULT 0;
