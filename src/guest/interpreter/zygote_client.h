/*
 * zygote_client.h - guestd's side of the zygote: ask it for an interpreter, and receive one that is in the sandbox.
 *
 * The zygote is a warm python3 outside the sandbox (docs/interpreter.md). Its socket can be given at any time; when it
 * closes there is no zygote until another socket is given. guestd must not depend on it.
 *
 * Trust      The template's code runs in the zygote and in what it forks. The only facts taken from it are the ones the
 *            kernel vouches for: the process id of the sender of the first message.
 */
#ifndef GUEST_INTERPRETER_ZYGOTE_CLIENT_H
#define GUEST_INTERPRETER_ZYGOTE_CLIENT_H

#include "guest/guest.h"

struct zygote_client;
struct zygote_spawn;

/* `on_closed`: the socket has closed, at either end. Spawns under way go on: they fail or succeed by themselves. */
struct zygote_client *zygote_client_new(struct guest *guest, void (*on_closed)(void *owner), void *owner) must_use;
void zygote_client_free(struct zygote_client *client);

/* Takes the descriptor, and closes it if the socket from before still works. */
void zygote_client_open(struct zygote_client *client, int socket_fd);
void zygote_client_close(struct zygote_client *client); /* fine when closed */

/* An interpreter did not come to life: the zygote is not asked for some seconds, or minutes if there are more of these. */
void zygote_client_failed(struct zygote_client *client);

/*
 * Can the zygote be asked for an interpreter of this user? Not if a variable changes how Python starts. ERR_UNAVAILABLE: not
 * now, but that can change.
 */
bool zygote_client_fits(const struct zygote_client *client, const struct user *user, struct err *err) must_use;

struct zygote_spawn_events {
    /* The process is in the sandbox and in the user's cgroups. Both descriptors are the receiver's. */
    void (*on_spawned)(void *owner, pid_t pid, int pidfd, int link_fd);
    void (*on_failed)(void *owner);
};

/*
 * Asks for an interpreter whose stdout and stderr are the two given descriptors, which stay the caller's. Either event
 * is the last word of a spawn, which is then gone; neither comes from inside this call.
 */
struct zygote_spawn *zygote_spawn_new(struct zygote_client *client, const struct user *user, const int out_and_err[2],
                                      const struct zygote_spawn_events *events, void *owner, struct err *err) must_use;
void zygote_spawn_cancel(struct zygote_spawn *spawn); /* NULL is fine */

#endif
