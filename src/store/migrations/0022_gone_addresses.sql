-- Addresses of removed inboxes that had received something: for a while nobody else gets them, who would get their mail.
CREATE TABLE mail_gone_addresses (
    address_hash TEXT PRIMARY KEY,
    gone_us BIGINT NOT NULL
);
CREATE INDEX mail_gone_addresses_by_time ON mail_gone_addresses (gone_us);
