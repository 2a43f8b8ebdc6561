/*
 * roles.h - the processes of the server besides keeper, one row each.
 *
 * Keeper starts each row as `cloister role NAME LEVEL`, watches it and starts it again (supervisor.h). A role is a row in
 * roles.c, a number in enum role_id, and a file with its main function and its list of system calls. One row is started on
 * demand, once for each inbox in use (inboxes.h). The roles that make and read mail are in another program, cloister-mail, so
 * that the libraries they need are not loaded into the others.
 */
#ifndef DAEMON_ROLES_H
#define DAEMON_ROLES_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "privsep/confine.h"
#include "privsep/message.h"
#include "privsep/role.h"

enum role_id {
    ROLE_FRONT,
    ROLE_EGRESS,
    ROLE_SIGNER,
    ROLE_COMPOSER,
    ROLE_WEBHOOKS,
    ROLE_PULLER,
    ROLE_INBOX,
    ROLE_COUNT,
};

/* What keeper can hand to a role at its start, one descriptor each. grant() in keeper.c opens them. */
enum role_grant {
    GRANT_NONE,
    GRANT_SETTINGS, /* settings.h; has the secrets of front */
    GRANT_LISTENER, /* the server's listening socket */
    GRANT_STORE,    /* the directory of the database */
    GRANT_EGRESS,   /* settings.h: the operator's network options, for egress and webhooks */
    GRANT_ROOTS,    /* the file of certificates that the host trusts; empty where there is none */
    GRANT_INBOX,    /* the directory of one inbox; see inboxes.h */
    GRANT_BLOBS,    /* the directory of downloads */
    GRANT_PULLER,   /* settings.h: what the operator says about registries */
    GRANT_MEMINFO,  /* /proc/meminfo */
    GRANT_COUNT,
};

/* Rows of cloister-mail have no functions and no calls in roles.c: these are in mail_main.c. */
struct role_row {
    const char *name;
    int (*main)(const struct role_row *self); /* returns the exit code; has no privileges any more */
    void (*prepare)(void);                    /* before files and system calls are restricted; may be NULL */
    size_t user;                              /* offsetof(struct config, …): the option that names its system user */
    enum role_grant grants[GRANT_COUNT];      /* ended by GRANT_NONE; see role_fd() */
    enum role_grant directory;                /* where it may open files; GRANT_NONE: nowhere */
    /* Files and directories that it may read besides, opened by it; at most ROLE_FDS_MAX. NULL: none */
    uint32_t (*readable)(const struct role_row *self, int fds[ROLE_FDS_MAX]);
    const struct confine_rule *calls;          /* the system calls that it may make */
    bool on_demand;                            /* the supervisor does not start it: inboxes.h does */
    bool is_of_mail;                           /* does not run with --mail off */
    uint32_t may_send;                         /* BIT(MESSAGE_…): what keeper accepts from it */
    uint32_t peers;                            /* BIT(ROLE_…): the roles that it has a channel to, besides keeper */
    uint32_t restart_first_ms, restart_max_ms; /* pause before a restart; doubled each time it dies soon after */
    uint32_t stop_ms;                          /* how long it may take to stop before it is killed */
};

static_assert(MESSAGE_TYPE_END <= 32 && ROLE_COUNT <= 32, "may_send and peers have a bit for each");

extern const struct role_row roles[ROLE_COUNT];

/* NULL: there is no such role. */
const struct role_row *role_find(const char *name) must_use;
/* `cloister role NAME LEVEL`: drops privileges as the row says, then runs its main function. LEVEL is for the log. */
int role_run(const struct role_row *row, const char *log_level) must_use;
/* In a role: the descriptor of a grant. -1 for one that is not in its row. */
int role_fd(const struct role_row *row, enum role_grant grant) must_use;

/* The main functions and system calls of all roles, each in a file of its own. */
int front_main(const struct role_row *self);
extern const struct confine_rule front_calls[];
int egress_main(const struct role_row *self);
extern const struct confine_rule egress_calls[];
int signer_main(const struct role_row *self);
extern const struct confine_rule signer_calls[];
/* In the program cloister-mail; see mail_main.c. */
int composer_main(const struct role_row *self);
extern const struct confine_rule composer_calls[];
int webhooks_main(const struct role_row *self);
void webhooks_prepare(void);
extern const struct confine_rule webhooks_calls[];
int puller_main(const struct role_row *self);
void puller_prepare(void);
uint32_t puller_readable(const struct role_row *self, int fds[ROLE_FDS_MAX]);
extern const struct confine_rule puller_calls[];
int inbox_main(const struct role_row *self);
extern const struct confine_rule inbox_calls[];

#endif
