-- Mail's routing map: which key leads to which inbox. No message, no subject, no address in the clear: what an inbox is
-- called is in `profile` (base64, encrypted under the server's secret), and address_hash is a keyed hash for lookups.
-- Columns with keys and ciphers are base64. '' stands for "none" in account_id and inbox_id.

-- approver_sealed: the private half of the approvers' key, sealed to the operator's key in sealed_to.
CREATE TABLE mail_tenants (
    id              TEXT PRIMARY KEY,
    name            TEXT NOT NULL UNIQUE,
    approver_public TEXT NOT NULL,
    approver_sealed TEXT NOT NULL,
    sealed_to       TEXT NOT NULL,
    oversight       TEXT NOT NULL,
    created_us      BIGINT NOT NULL
);

CREATE TABLE mail_accounts (
    id         TEXT PRIMARY KEY,
    tenant_id  TEXT NOT NULL REFERENCES mail_tenants (id),
    created_us BIGINT NOT NULL
);

-- A deleted inbox keeps its row, so that its address is never given out again. `handle` is the end of the id.
-- dirty: a change is under way, next_us and pending may be wrong. orphaned_us: the sandbox that it was made for has ended.
CREATE TABLE mail_inboxes (
    id           TEXT PRIMARY KEY,
    handle       TEXT NOT NULL UNIQUE,
    tenant_id    TEXT NOT NULL REFERENCES mail_tenants (id),
    account_id   TEXT NOT NULL,
    address_hash TEXT NOT NULL UNIQUE,
    profile      TEXT NOT NULL,
    public_key   TEXT NOT NULL,
    mode         SMALLINT NOT NULL,
    next_us      BIGINT NOT NULL DEFAULT 0,
    dirty        SMALLINT NOT NULL DEFAULT 0,
    pending      BIGINT NOT NULL DEFAULT 0,
    received     BIGINT NOT NULL DEFAULT 0,
    grants_wait  SMALLINT NOT NULL DEFAULT 0,
    created_us   BIGINT NOT NULL,
    deleted_us   BIGINT NOT NULL DEFAULT 0,
    shredded_us  BIGINT NOT NULL DEFAULT 0,
    orphaned_us  BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX mail_inboxes_of_tenant ON mail_inboxes (tenant_id, created_us);
CREATE INDEX mail_inboxes_of_account ON mail_inboxes (account_id) WHERE account_id <> '';
CREATE INDEX mail_inboxes_with_timer ON mail_inboxes (next_us) WHERE next_us > 0;
CREATE INDEX mail_inboxes_dirty ON mail_inboxes (dirty) WHERE dirty = 1;
CREATE INDEX mail_inboxes_pending ON mail_inboxes (pending) WHERE pending > 0;
CREATE INDEX mail_inboxes_deleted ON mail_inboxes (deleted_us) WHERE deleted_us > 0 AND shredded_us = 0;
CREATE INDEX mail_inboxes_orphaned ON mail_inboxes (orphaned_us) WHERE orphaned_us > 0 AND deleted_us = 0;

-- grant_public belongs to a pair that is derived from the key's text. approver_wrap: the approvers' private key, wrapped
-- under an oversight key; '' for other keys. is_own: the key that the inbox was made with.
CREATE TABLE mail_keys (
    id            TEXT PRIMARY KEY,
    tenant_id     TEXT NOT NULL REFERENCES mail_tenants (id),
    account_id    TEXT NOT NULL,
    inbox_id      TEXT NOT NULL,
    name          TEXT NOT NULL,
    prefix        TEXT NOT NULL,
    hash          TEXT NOT NULL UNIQUE,
    scopes        BIGINT NOT NULL,
    is_lobster    SMALLINT NOT NULL,
    is_own        SMALLINT NOT NULL,
    grant_public  TEXT NOT NULL,
    approver_wrap TEXT NOT NULL,
    created_us    BIGINT NOT NULL,
    last_used_us  BIGINT NOT NULL DEFAULT 0,
    revoked_us    BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX mail_keys_of_inbox ON mail_keys (inbox_id) WHERE inbox_id <> '';
CREATE INDEX mail_keys_of_account ON mail_keys (account_id) WHERE account_id <> '';
CREATE INDEX mail_keys_of_tenant ON mail_keys (tenant_id, created_us);

-- The operator's one-time codes. asked: a hash of the exact request. cipher: the code, and a sentence about the request.
CREATE TABLE mail_codes (
    id         TEXT PRIMARY KEY,
    tenant_id  TEXT NOT NULL,
    inbox_id   TEXT NOT NULL,
    asked      TEXT NOT NULL UNIQUE,
    cipher     TEXT NOT NULL,
    target     BIGINT NOT NULL,
    tries      BIGINT NOT NULL DEFAULT 0,
    created_us BIGINT NOT NULL,
    expires_us BIGINT NOT NULL
);
CREATE INDEX mail_codes_of_tenant ON mail_codes (tenant_id);

-- sealed: the key of the grant's wrap in the inbox's file, sealed to the grantee's key; '' until the grant is effective.
CREATE TABLE mail_grants (
    id             TEXT PRIMARY KEY,
    tenant_id      TEXT NOT NULL,
    grantee_key_id TEXT NOT NULL,
    inbox_id       TEXT NOT NULL,
    verbs          BIGINT NOT NULL,
    reason         TEXT NOT NULL,
    sealed         TEXT NOT NULL DEFAULT '',
    created_us     BIGINT NOT NULL,
    expires_us     BIGINT NOT NULL,
    revoked_us     BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX mail_grants_of_key ON mail_grants (grantee_key_id, inbox_id);
CREATE INDEX mail_grants_of_inbox ON mail_grants (inbox_id);

-- The inbox that was made for a sandbox. credential: its key, encrypted under the server's secret.
CREATE TABLE mail_sandboxes (
    sandbox_id TEXT PRIMARY KEY,
    inbox_id   TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    credential TEXT NOT NULL,
    created_us BIGINT NOT NULL
);

-- What is limited to so many an hour: sign-ups from one place, requests for a code.
CREATE TABLE mail_rates (
    what  TEXT NOT NULL,
    who   TEXT NOT NULL,
    at_us BIGINT NOT NULL
);
CREATE INDEX mail_rates_by_time ON mail_rates (what, who, at_us);
