-- The assignment that each tag means, to be found without its history. It goes with that one, which is removed only with the
-- whole tag.
CREATE TABLE newest_tags (
    template_id TEXT NOT NULL,
    tag         TEXT NOT NULL,
    assigned_us BIGINT NOT NULL,
    PRIMARY KEY (template_id, tag),
    FOREIGN KEY (template_id, tag, assigned_us) REFERENCES build_tags (template_id, tag, assigned_us) ON DELETE CASCADE
);
INSERT INTO newest_tags (template_id, tag, assigned_us)
    SELECT g.template_id, g.tag, MAX(g.assigned_us) FROM build_tags g JOIN builds b ON b.id = g.build_id
    WHERE b.state = 'ready' GROUP BY g.template_id, g.tag;
CREATE INDEX build_layers_by_layer ON build_layers (layer, template_id);
