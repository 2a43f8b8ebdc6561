/*
 * config.h - the operator's options, and where they come from.
 *
 * One table (config.c) has every option with its type, field, default and help, for parsing and for `cloister serve
 * --help`. Later sources win: defaults, then the configuration file, then the command line. The entries of a list add up
 * within one source. Those of --egress-deny add up across all: no source drops a restriction of another.
 */
#ifndef DAEMON_CONFIG_H
#define DAEMON_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "base/limits.h"

#define CONFIG_FILE "/etc/cloister/cloister.conf"

enum {
    CONFIG_TEXT_BYTES = 512,
    CONFIG_LIST_BYTES = LIMIT_INSIDE_BYTES, /* LIMIT_EGRESS_RANGES ranges of IPv6, written out */
    CONFIG_LISTS = 8,                       /* that a later source replaces */
};

/* A list of the file that the command line replaced. */
struct config_replaced {
    const char *option;
    uint32_t entries; /* that the file had */
};

struct config {
    char data[CONFIG_TEXT_BYTES];   /* directory */
    char listen[CONFIG_TEXT_BYTES]; /* address:port */
    char domain[CONFIG_TEXT_BYTES]; /* <port>-<id>.<domain>; empty: see settings_choose_domain() */
    char tls_cert[CONFIG_TEXT_BYTES], tls_key[CONFIG_TEXT_BYTES]; /* files in PEM; empty: the local authority's */
    char user[CONFIG_TEXT_BYTES];                                 /* that front runs as */
    char egress_user[CONFIG_TEXT_BYTES];                          /* that egress runs as; another one than front's */
    char signer_user[CONFIG_TEXT_BYTES];                          /* that signer runs as; another one than both */
    char composer_user[CONFIG_TEXT_BYTES]; /* that composer runs as; another one than all of them */
    char webhooks_user[CONFIG_TEXT_BYTES]; /* that webhooks runs as; another one again */
    char puller_user[CONFIG_TEXT_BYTES];   /* that puller runs as; the same */
    char guestd[CONFIG_TEXT_BYTES];        /* the static binary; empty: beside this one */
    char criu[CONFIG_TEXT_BYTES];          /* directory; off: none */
    char log[CONFIG_TEXT_BYTES];           /* debug, info, warn, error */
    uint64_t sandboxes_max;
    char pool[CONFIG_TEXT_BYTES];                      /* auto, off, or a number */
    uint64_t key_sandboxes, key_requests, key_streams; /* of each API key */
    uint64_t timeout_max_s;
    uint64_t compress_after_s;
    uint64_t snapshots_max, team_snapshots, snapshot_disk_gb;
    uint64_t snapshot_days, paused_days; /* 0: for ever */
    uint64_t memory_mb;                  /* of each sandbox; 0: what its template asks for */
    uint64_t cpus;                       /* the same */
    uint64_t pids;
    char token_for_code[CONFIG_TEXT_BYTES];             /* as-asked, always */
    char internet[CONFIG_TEXT_BYTES];                   /* on, off */
    char egress_allow[CONFIG_LIST_BYTES];               /* CIDR,CIDR… */
    char egress_deny[CONFIG_LIST_BYTES];                /* CIDR,CIDR… */
    char dns[CONFIG_LIST_BYTES];                        /* ADDR[:PORT],… */
    char inside[CONFIG_LIST_BYTES];                     /* NAME:PORT=ADDR:PORT,… */
    uint64_t egress_rate_mb;                            /* MiB per second of each sandbox; 0: no limit */
    char mail[CONFIG_TEXT_BYTES];                       /* on, off */
    char mail_domain[CONFIG_TEXT_BYTES];                /* of addresses */
    char mail_names[CONFIG_TEXT_BYTES];                 /* host names, or none */
    char strict_inbox_keys[CONFIG_TEXT_BYTES];          /* on, off */
    uint64_t mail_sends_per_minute, mail_sends_per_day; /* of each inbox */
    uint64_t mail_inboxes;                              /* of each principal */
    uint64_t mail_disk_gb;                              /* of all mail */
    char webhook_allow[CONFIG_LIST_BYTES];              /* CIDR,CIDR… */
    uint64_t mail_signups_per_hour;                     /* from one place */
    char registry_mirror[CONFIG_LIST_BYTES];            /* HOST=URL,… */
    char registry_insecure[CONFIG_LIST_BYTES];          /* HOST[:PORT],… */
    char registry_allow[CONFIG_LIST_BYTES];             /* HOST[:PORT],… */
    char image[CONFIG_LIST_BYTES];                      /* NAME=SOURCE,… */

    char file[CONFIG_TEXT_BYTES]; /* the configuration file */
    struct config_replaced replaced[CONFIG_LISTS];
    uint32_t replaced_count;
};

/* Defaults, the file (it may be missing unless --config names it), then argv. An error names the option or line. */
bool config_load(int argc, char **argv, struct config *out, struct err *err) must_use;
/* The options as a table for --help. */
void config_help(FILE *out);

#endif
