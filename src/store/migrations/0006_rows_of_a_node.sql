-- Which node (one data directory with its server) holds a sandbox, or works on a repeat: servers that share a store leave
-- each other's rows alone. '' is replaced by the node that opens the store first: it has made those rows.
ALTER TABLE sandboxes ADD COLUMN node_id TEXT NOT NULL DEFAULT '';
ALTER TABLE repeats ADD COLUMN node_id TEXT NOT NULL DEFAULT '';
