-- Old clients send no access token with run_code. A sandbox that was created without `secure` asks for none there.
ALTER TABLE sandboxes ADD COLUMN open_code SMALLINT NOT NULL DEFAULT 0;
