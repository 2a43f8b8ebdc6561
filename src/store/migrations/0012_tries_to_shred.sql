-- How often the file of a deleted inbox could not be shredded because it is damaged. After LIMIT_MAIL_SHRED_TRIES it stays.
ALTER TABLE mail_inboxes ADD COLUMN shred_tries SMALLINT NOT NULL DEFAULT 0;
