/*
 * settings.h - what front, egress and webhooks get from keeper when they start: the operator's choices, and for front its secrets.
 *
 * Keeper writes them to a sealed memory file that the role inherits, so that arguments and environment do not show them.
 */
#ifndef DAEMON_SETTINGS_H
#define DAEMON_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/secret.h"
#include "daemon/config.h"
#include "egress/egress.h"
#include "mail/seal.h"
#include "policy/net_policy.h"
#include "registry/registry.h"

/* What front needs for mail. */
struct mail_settings {
    bool is_on;
    char domain[LIMIT_NET_NAME_BYTES + 1]; /* of addresses, in lower case */
    bool strict_inbox_keys;
    bool webhooks_http; /* --webhook-allow has addresses, which may be called by http */
    uint32_t sends_per_minute, sends_per_day, inboxes_most, signups_per_hour, disk_gb;
    struct secret server_key;        /* mail/server-key: the server's keys are derived from it */
    struct seal_key operator_public; /* of the admin token; front never has the token itself */
    struct secret inbox_key, token;  /* of the first inbox and the first account; `cloister env` prints them */
};

/* What front and puller need to know of registries: the options as they are written. */
struct puller_settings {
    char mirrors[CONFIG_LIST_BYTES], insecure[CONFIG_LIST_BYTES], allow[CONFIG_LIST_BYTES], images[CONFIG_LIST_BYTES];
};
/* Borrows. */
struct registry_options puller_settings_options(const struct puller_settings *settings);
/* ERR_INVALID names the option and the entry. */
bool puller_settings_make(const struct config *config, struct puller_settings *out, struct err *err) must_use;
int puller_settings_write(const struct puller_settings *settings, struct err *err) must_use;
bool puller_settings_read(int fd, struct puller_settings *out, struct err *err) must_use;

struct settings {
    char node_id[LIMIT_ID_BYTES]; /* whose rows in the store are ours */
    char domain[CONFIG_TEXT_BYTES];
    uint32_t sandboxes_max;
    uint32_t pool_most; /* 0: no pool */
    bool pool_is_auto;
    uint32_t key_sandboxes, key_requests, key_streams;
    uint64_t timeout_max_s;
    uint32_t snapshots_max, team_snapshots, snapshot_disk_gb;
    uint32_t snapshot_days, paused_days; /* 0: for ever */
    uint32_t memory_mb, cpus;            /* of each sandbox; 0: what its template asks for */
    uint32_t pids;
    bool code_always_has_token;
    bool internet;                   /* for a create that does not say: --internet */
    char inside[LIMIT_INSIDE_BYTES]; /* the names of --inside, a line each */
    uint32_t egress_allow_count;
    struct net_range egress_allow[LIMIT_EGRESS_RANGES]; /* --egress-allow; egress has it too */
    uint32_t egress_deny_count;
    struct net_range egress_deny[LIMIT_EGRESS_RANGES]; /* --egress-deny; the same */
    struct secret api_key;                             /* the first key; `cloister env` prints it */
    struct mail_settings mail;
    struct puller_settings puller;
    struct secret admin_hash; /* of the token that opens /api-keys; front never has the token itself */
};

/* From the options. ERR_INVALID names the option. Secrets are left alone. */
bool mail_settings_make(const struct config *config, struct mail_settings *out, struct err *err) must_use;
void settings_wipe(struct settings *settings); /* its secrets */
/* A descriptor that front reads with settings_read(). */
int settings_write(const struct settings *settings, struct err *err) must_use;
bool settings_read(int fd, struct settings *out, struct err *err) must_use;

/* A name server. */
struct egress_resolver {
    struct net_address address;
    uint16_t port;
};

/* Egress and webhooks have no secrets and need none of front's settings. */
struct egress_settings {
    uint32_t allow_count;
    struct net_range allow[LIMIT_EGRESS_RANGES]; /* --egress-allow */
    uint32_t deny_count;
    struct net_range deny[LIMIT_EGRESS_RANGES]; /* --egress-deny */
    uint32_t resolver_count;                    /* 0: the host's own */
    struct egress_resolver resolvers[LIMIT_RESOLVERS];
    uint32_t hook_allow_count;
    struct net_range
        hook_allow[LIMIT_EGRESS_RANGES]; /* --webhook-allow, for the role webhooks, which has the rest too */
    uint32_t service_count;
    struct egress_service services[LIMIT_SERVICES]; /* mail, and --inside */
    uint64_t bytes_per_s;                           /* of one sandbox, each way; 0: no limit */
    uint32_t sandboxes_max;                         /* with those in the pool */
};

/* ERR_INVALID names the option and the entry. */
bool egress_settings_make(const struct config *config, struct egress_settings *out, struct err *err) must_use;
/* The names of its services, each once and with a newline. */
void egress_settings_names(const struct egress_settings *settings, char out[LIMIT_INSIDE_BYTES]);
/* The servers of --dns, as lines of a resolv.conf; nothing without them. */
void egress_settings_resolvers(const struct egress_settings *settings, struct buf *out);
/* A descriptor that egress reads with egress_settings_read(). */
int egress_settings_write(const struct egress_settings *settings, struct err *err) must_use;
bool egress_settings_read(int fd, struct egress_settings *out, struct err *err) must_use;

/* --pool: how many may wait for a create; 0 for off. ERR_INVALID. */
bool settings_pool(const char *word, uint32_t *out_most, bool *out_auto, struct err *err) must_use;
/* --domain: none, NAME or NAME:PORT; ERR_INVALID for anything else. */
bool settings_domain(const char *text, struct err *err) must_use;
/*
 * The domain that clients make host names from, as the answer to a create has it: the operator's, or
 * cloister.localhost:PORT, which leads to 127.0.0.1 and ::1, if the server listens there. Otherwise empty: clients then
 * use their own E2B_DOMAIN.
 */
void settings_choose_domain(const struct config *config, char out[CONFIG_TEXT_BYTES]);
/* "on" or "off"; ERR_INVALID names the option for another word. */
bool settings_switch(const char *option, const char *word, bool *out_on, struct err *err) must_use;
/* "as-asked" or "always"; ERR_INVALID for another word. */
bool settings_token_for_code(const char *word, bool *out_always, struct err *err) must_use;
/* ERR_INVALID for a name that is not a level. */
bool settings_log_level(const char *name, enum log_level *out, struct err *err) must_use;

#endif
