-- What a sandbox may reach: a packed struct net_policy, in base64. Empty for a sandbox from before there was a network: it
-- reaches nothing. The policy includes what the column internet had. And the ports that expect TLS, separated by commas.
ALTER TABLE sandboxes ADD COLUMN network TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN https_ports TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes DROP COLUMN internet;
