-- Which node has the template's file: that node removes the row when the file is gone.
ALTER TABLE templates ADD COLUMN node_id TEXT NOT NULL DEFAULT '';
