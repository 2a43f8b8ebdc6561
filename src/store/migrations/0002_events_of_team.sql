-- A team asks for its own events, newest first, and counts them by time.
CREATE INDEX events_of_team ON events (team_id, at_us, type);
