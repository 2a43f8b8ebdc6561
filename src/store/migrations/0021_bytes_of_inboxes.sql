-- What the inbox's file takes on disk: what an empty one has until its worker has said it; see store_mail_room().
ALTER TABLE mail_inboxes ADD COLUMN bytes BIGINT NOT NULL DEFAULT 163840;
CREATE INDEX mail_inboxes_bytes ON mail_inboxes (tenant_id, shredded_us, bytes);
