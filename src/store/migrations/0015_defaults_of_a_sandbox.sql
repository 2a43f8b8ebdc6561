-- The user and the directory that commands have which name none, as the template's last USER and WORKDIR say. Empty
-- directory: the user's home.
ALTER TABLE sandboxes ADD COLUMN default_user TEXT NOT NULL DEFAULT 'user';
ALTER TABLE sandboxes ADD COLUMN default_workdir TEXT NOT NULL DEFAULT '';
