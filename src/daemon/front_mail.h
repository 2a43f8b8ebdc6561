/*
 * front_mail.h - front's wiring of mail: the server's keys, connections to workers and composer, time, and events.
 *
 * Threads    The loop's. Functions that mail/ calls to open a connection are workers'.
 */
#ifndef DAEMON_FRONT_MAIL_H
#define DAEMON_FRONT_MAIL_H

#include "actions/mail.h"
#include "base/attr.h"
#include "base/err.h"
#include "daemon/settings.h"
#include "io/loop.h"
#include "io/worker.h"
#include "privsep/channel.h"

struct front_mail;

struct front_mail_config {
    struct loop *loop;
    struct workers *workers;
    struct channel *keeper, *composer, *webhooks;
    const struct mail_settings *settings;
    const struct actions *actions; /* must outlive it; filled in before front_mail_begin() */
    /* On the loop. */
    void (*heard)(void *context, const struct mail_event *event);
    void *context;
};

struct front_mail *front_mail_new(const struct front_mail_config *config, struct err *err) must_use;
/* After the workers have been freed. NULL is fine. */
void front_mail_free(struct front_mail *mail);
/* For struct actions. */
const struct mail_setup *front_mail_setup(const struct front_mail *mail);
/* On a worker, before requests are accepted: the first inbox, for `cloister env`. A failure is only told. */
void front_mail_first(struct front_mail *mail);
/* From now on messages leave when their time has come. */
void front_mail_begin(struct front_mail *mail);
/* No new work is begun any more. */
void front_mail_stop(struct front_mail *mail);

#endif
