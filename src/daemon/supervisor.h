/*
 * supervisor.h - starts the roles of a table, watches them, starts them again and stops them; not those on demand.
 *
 * A role that ends is started again after the pause in its row. One that sends keeper what its row does not allow, or
 * what does not decode, is killed first. Two roles that are peers get the two ends of a new connection each time one of
 * them has been started. A connection that breaks while both run is replaced when one of them ends and is restarted.
 *
 * Threads    Keeper's loop.
 */
#ifndef DAEMON_SUPERVISOR_H
#define DAEMON_SUPERVISOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/attr.h"
#include "base/err.h"
#include "daemon/roles.h"
#include "io/loop.h"
#include "privsep/channel.h"

struct role_account {
    uid_t uid;
    gid_t gid;
};

/* A role is named by its number in the table. */
struct supervisor_config {
    struct loop *loop;
    const struct role_row *rows;
    uint32_t count;
    const struct role_account *accounts; /* one for each row */
    const char *log_level;               /* for role_run() */
    uint32_t without;                    /* BIT(row): is not started */
    int mail_program;                    /* cloister-mail, for the rows without a main function */
    /* Opens a descriptor for a role, which the supervisor closes. Or -1. */
    int (*grant)(void *context, enum role_grant grant, struct err *err);
    void (*started)(void *context, uint32_t role, struct channel *channel);
    void (*ended)(void *context, uint32_t role, struct channel *channel); /* the channel is freed afterwards */
    /* As in channel.h. Only for types in the row's may_send. */
    bool (*request)(void *context, uint32_t role, struct channel *channel, enum message_type type, uint32_t id,
                    struct str payload, struct err *err);
    bool (*event)(void *context, uint32_t role, enum message_type type, struct str payload, struct err *err);
    void (*stopped)(void *context); /* after supervisor_stop(): all roles have ended */
    void *context;
};

struct supervisor;

/* The configuration is copied; what it points to must live as long as the supervisor. */
struct supervisor *supervisor_new(const struct supervisor_config *config) must_use;
void supervisor_start(struct supervisor *supervisor);
/* SIGTERM for all, SIGKILL for those that do not end in time. Calls stopped(), at once when none runs. */
void supervisor_stop(struct supervisor *supervisor);
/* Does not end what runs: roles die with keeper. NULL is fine. */
void supervisor_free(struct supervisor *supervisor);

/*
 * In a role, for the event MESSAGE_PEER: gives the new connection to the channel of that peer. `peers` has a channel for
 * each role that this one talks to, made with channel_new(loop, -1, …), and NULL for the others.
 */
bool supervisor_take_peer(struct channel *const *peers, uint32_t count, struct str payload, struct message_fds *fds,
                          struct err *err) must_use;

#endif
