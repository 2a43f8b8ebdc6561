-- The file of one inbox. Whatever a correspondent or the agent has written is in columns called *_cipher. A lookup that must
-- not show the text uses a keyed hash (*_hash). Version 1.
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL);
-- The inbox's private key, once for each credential that may read.
CREATE TABLE wraps (key_id TEXT PRIMARY KEY, wrapped BLOB NOT NULL, created_us INTEGER NOT NULL);
CREATE TABLE messages (
    id TEXT PRIMARY KEY,
    thread_id TEXT NOT NULL,
    direction INTEGER NOT NULL,             -- enum mail_direction
    state INTEGER NOT NULL DEFAULT 0,       -- enum mail_state, outbound
    in_status INTEGER NOT NULL DEFAULT 0,   -- enum mail_in_status, inbound
    created_us INTEGER NOT NULL,
    received_us INTEGER NOT NULL,
    send_at_us INTEGER NOT NULL DEFAULT 0,
    schedule_first INTEGER NOT NULL DEFAULT 0,
    undo_until_us INTEGER NOT NULL DEFAULT 0,
    hold_until_us INTEGER NOT NULL DEFAULT 0,
    hold_us INTEGER NOT NULL DEFAULT 0,     -- how long it may be held each time
    composer TEXT NOT NULL DEFAULT '',
    hash BLOB,                              -- SHA-256 of envelope and MIME
    approval_hash BLOB,                     -- NULL: no approval
    approval_expires_us INTEGER NOT NULL DEFAULT 0,
    approval_spent INTEGER NOT NULL DEFAULT 0,
    approval_mac BLOB,
    decided_us INTEGER NOT NULL DEFAULT 0,
    decided_by TEXT NOT NULL DEFAULT '',
    reason_cipher BLOB,                     -- under the content key
    delivered_us INTEGER NOT NULL DEFAULT 0,
    label TEXT NOT NULL DEFAULT '',
    has_attachments INTEGER NOT NULL DEFAULT 0,
    size INTEGER NOT NULL,                  -- bytes of head_cipher, body_cipher and tags_cipher
    once_hash TEXT UNIQUE,                  -- inbound: release and recipient
    idempotency_hash TEXT,
    dedup_hash TEXT,
    tags_cipher BLOB,
    head_cipher BLOB NOT NULL,              -- packed content without MIME, text, HTML and attachments' content
    body_cipher BLOB NOT NULL               -- packed content, whole. Last: what follows it costs a walk over its pages
);
CREATE INDEX messages_by_time ON messages (received_us);
CREATE INDEX messages_by_thread ON messages (thread_id);
CREATE INDEX messages_that_wait ON messages (state) WHERE direction = 1;
CREATE INDEX messages_that_arrived ON messages (in_status, id) WHERE direction = 0;
CREATE INDEX messages_by_idempotency ON messages (idempotency_hash) WHERE idempotency_hash IS NOT NULL;
CREATE INDEX messages_by_dedup ON messages (dedup_hash) WHERE dedup_hash IS NOT NULL;
-- A message's content key for each holder: 'inbox', 'approver', 'server'. Sealed to the holder's public key. The first
-- reader replaces the inbox's one by a wrap (it is shorter), which opens a hundred times as fast.
CREATE TABLE content_keys (
    message_id TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    holder TEXT NOT NULL,
    sealed BLOB NOT NULL,
    PRIMARY KEY (message_id, holder)
) WITHOUT ROWID;
CREATE TABLE releases (
    id TEXT PRIMARY KEY,
    message_id TEXT NOT NULL UNIQUE REFERENCES messages (id) ON DELETE CASCADE,
    hash BLOB NOT NULL,
    mode INTEGER NOT NULL,
    is_approved INTEGER NOT NULL,
    approver TEXT NOT NULL,
    mac BLOB NOT NULL,
    at_us INTEGER NOT NULL,
    front TEXT NOT NULL,                    -- the process that delivers it: another one repeats
    claim TEXT NOT NULL,                    -- the call that got it: the same call gets it again
    claimed_us INTEGER NOT NULL
);
-- Recipients by their number in the content's list: whether the allowlist has them, and what became of each.
CREATE TABLE recipients (
    message_id TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    address_hash TEXT NOT NULL,             -- as in allowlist: of the address,
    domain_hash TEXT NOT NULL,              -- and of "*@" and its domain
    outcome INTEGER,                        -- enum mail_outcome; NULL: none yet
    at_us INTEGER NOT NULL DEFAULT 0,
    detail_cipher BLOB,                     -- under the server's key
    PRIMARY KEY (message_id, number)
) WITHOUT ROWID;
CREATE TABLE threads (
    id TEXT PRIMARY KEY,
    subject_hash TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    last_us INTEGER NOT NULL
);
CREATE INDEX threads_by_time ON threads (last_us, id);
CREATE INDEX threads_by_subject ON threads (subject_hash, last_us);
-- Message-IDs of all messages, to find the thread of an answer.
CREATE TABLE message_ids (hash TEXT PRIMARY KEY, message_id TEXT NOT NULL, thread_id TEXT NOT NULL);
-- Under a key that is derived from the inbox's private key.
CREATE TABLE contacts (id TEXT PRIMARY KEY, cipher BLOB NOT NULL, created_us INTEGER NOT NULL);
-- proof: front's, with a key that the worker does not have.
CREATE TABLE allowlist (id TEXT PRIMARY KEY, pattern_hash TEXT NOT NULL UNIQUE, pattern_cipher BLOB NOT NULL,
                        proof TEXT NOT NULL, created_us INTEGER NOT NULL);
CREATE TABLE webhooks (
    id TEXT PRIMARY KEY,
    cipher BLOB NOT NULL,
    is_enabled INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    created_us INTEGER NOT NULL
);
CREATE TABLE links (
    token_hash TEXT PRIMARY KEY,
    kind INTEGER NOT NULL,
    message_id TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    attachment INTEGER NOT NULL,
    wrapped BLOB NOT NULL,                  -- the content key under the token; empty: spent
    expires_us INTEGER NOT NULL,
    is_spent INTEGER NOT NULL
);
CREATE INDEX links_by_message ON links (message_id);
CREATE TABLE audit (
    number INTEGER PRIMARY KEY,
    action TEXT NOT NULL,
    resource TEXT NOT NULL,
    actor TEXT NOT NULL,
    detail TEXT NOT NULL,
    at_us INTEGER NOT NULL,
    prev_hash TEXT NOT NULL,
    hash TEXT NOT NULL
);
-- One row for each message that was accepted, for a day: what the limits count. Messages may be deleted, these are not.
CREATE TABLE sends (at_us INTEGER NOT NULL);
CREATE INDEX sends_by_time ON sends (at_us);
-- The sizes of all messages together.
CREATE TABLE storage (bytes INTEGER NOT NULL);
INSERT INTO storage (bytes) VALUES (0);
CREATE TRIGGER message_comes AFTER INSERT ON messages BEGIN
    UPDATE storage SET bytes = bytes + new.size;
END;
CREATE TRIGGER message_changes AFTER UPDATE OF size ON messages BEGIN
    UPDATE storage SET bytes = bytes + new.size - old.size;
END;
CREATE TRIGGER message_goes AFTER DELETE ON messages BEGIN
    UPDATE storage SET bytes = bytes - old.size;
END;
CREATE TABLE counters (day INTEGER NOT NULL, name TEXT NOT NULL, value INTEGER NOT NULL, PRIMARY KEY (day, name))
    WITHOUT ROWID;
