/*
 * guestd_fake.h - stands in for guestd's port in all sandboxes of a fake driver: it answers Start as a table says, and notes
 * what was asked. A thread each connection.
 */
#ifndef TESTS_TEMPLATE_GUESTD_FAKE_H
#define TESTS_TEMPLATE_GUESTD_FAKE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The first rule whose text is in the command is the answer; without one: exit 0, nothing printed. */
struct guestd_rule {
    const char *has; /* part of the command; "POST /cloister/copy" for an archive */
    const char *out, *err;
    int exit_code;
    const char *refusal; /* "code\nmessage" instead */
    bool hangs;          /* until the connection is cut, or guestd_fake_go_on() */
    unsigned fails;      /* so many times first, with exit code 1 */
};

enum { GUESTD_ASKED = 200 };

struct guestd_fake {
    int listener;
    uint16_t port;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;    /* a connection has ended */
    struct guestd_rule *rules; /* ends with one without `has` */
    /* Under the lock: "user|cwd|ENV=value,…|command", or "copy|target|bytes". */
    char asked[GUESTD_ASKED][2000];
    unsigned asked_count;
    unsigned open; /* connections */
};

void guestd_fake_make(struct guestd_fake *fake);
void guestd_fake_drop(struct guestd_fake *fake); /* waits for the connections to be cut */
/* What hangs by this rule ends, and no more does. */
void guestd_fake_go_on(struct guestd_fake *fake, struct guestd_rule *rule);
/* How many requests have this in what was noted. */
unsigned guestd_fake_count(struct guestd_fake *fake, const char *text);

#endif
