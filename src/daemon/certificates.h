/*
 * certificates.h - keeper's part of TLS: which certificates there are, and telling signer and front.
 *
 * There are one or two: the operator's (--tls-cert, --tls-key) first, then the local authority's (authority.h). Signer
 * gets the keys, front the certificates, each as the descriptor of a sealed memory file (MESSAGE_CERTIFICATE).
 *
 * The operator's files are looked at every few seconds. When they have changed and are the same at the next look, they
 * are loaded again. Files that cannot be used leave the old ones in force, and the log says why, once for each change.
 *
 * Threads    Keeper's loop.
 */
#ifndef DAEMON_CERTIFICATES_H
#define DAEMON_CERTIFICATES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "daemon/authority.h"
#include "io/loop.h"
#include "privsep/channel.h"

struct certificates_config {
    struct loop *loop;
    int data_fd;
    const char *domain;               /* as clients are told it, with a port or not; may be empty */
    const char *cert_path, *key_path; /* the operator's; both or neither ("") */
    void (*changed)(void *context);   /* send them again */
    void *context;
    uint64_t look_ms; /* between two looks at files; 0: 5 seconds */
};

struct certificates;

/* Two files or none: what can be said before anything is opened. */
bool certificates_check_paths(const char *cert_path, const char *key_path, struct err *err) must_use;
/* The strings must live as long as this does. NULL if the operator's files cannot be used: they were asked for. */
struct certificates *certificates_new(const struct certificates_config *config, struct err *err) must_use;
void certificates_free(struct certificates *all); /* NULL is fine */
void certificates_send_keys(struct certificates *all, struct channel *signer);
void certificates_send_chains(struct certificates *all, struct channel *front);
/* For what is not the operator's to have: true if the operator has given certificates. */
bool certificates_are_given(const struct certificates *all);

/* Checks a pair of files as certificates_new() does. *out has them. */
bool certificates_read(const char *cert_path, const char *key_path, const char *domain, struct key_pair *out,
                       struct err *err) must_use;

/* ---- the other side: what MESSAGE_CERTIFICATE carries ---- */

struct message_texts {
    char *at[LIMIT_MESSAGE_FDS]; /* on the heap */
    size_t len[LIMIT_MESSAGE_FDS];
    uint32_t count;
};
bool message_texts_read(struct str payload, struct message_fds *fds, size_t cap, struct message_texts *out,
                        struct err *err) must_use;
void message_texts_done(struct message_texts *texts); /* wipes them */
#define auto_texts __attribute__((cleanup(message_texts_done)))

#endif
