-- An inbox of a sandbox that has ended is removed as a whole, unless something has left it or a person has decided about it:
-- then stays is 1, and it is shredded a week later as a deleted one.
ALTER TABLE mail_inboxes ADD COLUMN stays SMALLINT NOT NULL DEFAULT 0;
CREATE INDEX mail_inboxes_ended ON mail_inboxes (orphaned_us) WHERE orphaned_us > 0 AND stays = 0;
CREATE INDEX mail_sandboxes_by_inbox ON mail_sandboxes (inbox_id);
