-- Of the sandbox that it is of: sandboxes that are made from it have the same. Empty: as always.
ALTER TABLE snapshots ADD COLUMN default_user TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN default_workdir TEXT NOT NULL DEFAULT '';
