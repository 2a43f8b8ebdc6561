-- What a layer alone takes (bytes counts those of an image with the step that has brought them), and the step that made it: ''
-- for layers of images, which teams have in common.
ALTER TABLE build_kept ADD COLUMN layer_bytes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE build_kept ADD COLUMN step TEXT NOT NULL DEFAULT '';
UPDATE build_kept SET layer_bytes = bytes;

-- The template that it was built from; '': none, or one of the operator.
ALTER TABLE builds ADD COLUMN from_template TEXT NOT NULL DEFAULT '';
CREATE INDEX builds_from_template ON builds (from_template, template_id);
CREATE INDEX snapshots_of_source ON snapshots (source_template_id, team_id);

-- The layers of ready builds once more, to be found by layer. An id has 64 digits.
CREATE TABLE build_layers (
    build_id    TEXT NOT NULL REFERENCES builds (id) ON DELETE CASCADE,
    layer       TEXT NOT NULL,
    template_id TEXT NOT NULL,
    team_id     TEXT NOT NULL,
    PRIMARY KEY (build_id, layer)
);
CREATE INDEX build_layers_of_team ON build_layers (team_id, layer, template_id);
INSERT INTO build_layers (build_id, layer, template_id, team_id)
    WITH RECURSIVE place (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM place WHERE n < 255)
    SELECT DISTINCT b.id, SUBSTR(b.layers, n * 65 + 1, 64), b.template_id, b.team_id
    FROM builds b JOIN place ON n * 65 < LENGTH(b.layers) WHERE b.state = 'ready';
CREATE INDEX template_layers_by_layer ON template_layers (layer);
