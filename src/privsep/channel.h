/*
 * channel.h - typed messages and descriptors between two of our processes.
 *
 * One end of a SOCK_SEQPACKET pair on a loop: a message is a datagram and arrives whole or not at all. A request is
 * answered by exactly one reply; an event by nothing.
 *
 * Ownership  The channel owns its descriptor. Descriptors that are sent stay the caller's: they are duplicated at once.
 *            Those that arrive belong to the handler of the message; those that it does not take are closed.
 * Threads    The loop's, except channel_call().
 * Failure    A message that does not decode ends the channel: broken(), once. The same when the peer closes.
 */
#ifndef PRIVSEP_CHANNEL_H
#define PRIVSEP_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"
#include "io/loop.h"
#include "privsep/message.h"

struct channel;

/* Descriptors on their way in: take the ones you keep (take_fd(&fds->at[0])), the rest is closed afterwards. */
struct message_fds {
    int at[LIMIT_MESSAGE_FDS];
    uint32_t count;
};

struct channel_handlers {
    /*
     * A request came. Answer it with channel_reply() or channel_reply_error(), now or later, exactly once. False means
     * malformed, and err says how: the channel breaks.
     */
    bool (*request)(void *context, struct channel *channel, enum message_type type, uint32_t id, struct str payload,
                    struct message_fds *fds, struct err *err);
    /* An event came. False as above. */
    bool (*event)(void *context, enum message_type type, struct str payload, struct message_fds *fds, struct err *err);
    /*
     * The peer is gone or sent a malformed message; why has the kind ERR_UNAVAILABLE or ERR_INVALID. Everything that
     * waited has been told. Called once for each connection, on the loop; channel_free() is allowed in it.
     */
    void (*broken)(void *context, const struct err *why);
};

/*
 * Takes the descriptor. NULL handlers refuse what they would handle. With -1 the channel has no connection yet: until
 * channel_renew() it behaves as one whose peer is gone.
 */
struct channel *channel_new(struct loop *loop, int fd, const struct channel_handlers *handlers, void *context) must_use;
/*
 * Takes a new connection to a peer that was restarted, in place of the old one, broken or not. Requests that wait on the
 * old one fail with ERR_UNAVAILABLE. Later ones go to the new one, also channel_call()s that are under way.
 */
void channel_renew(struct channel *channel, int fd);
/*
 * While the loop still runs: requests that wait, and all later ones, fail with ERR_UNAVAILABLE. broken() is not called,
 * and the channel cannot be renewed.
 */
void channel_shut(struct channel *channel);
/* Requests that wait fail with ERR_UNAVAILABLE; broken() is not called. No channel_call() may be under way. */
void channel_free(struct channel *channel);

/* A request, from the loop. done() is called once, later: with payload and fds and err NULL, or with err alone. */
typedef void channel_done_fn(void *context, struct str payload, struct message_fds *fds, const struct err *err);
void channel_request(struct channel *channel, enum message_type type, struct str payload, const int *fds,
                     uint32_t fd_count, channel_done_fn *done, void *context);

/* The answer to a worker's request: the payload is on the heap and the caller's, fds too. */
struct channel_answer {
    char *payload;
    size_t len;
    struct message_fds fds;
};
void channel_answer_done(struct channel_answer *answer); /* frees and closes what is left in it */
#define auto_answer __attribute__((cleanup(channel_answer_done)))

/* A request, from a worker: waits for the reply, at most LIMIT_KEEPER_MS. */
bool channel_call(struct channel *channel, enum message_type type, struct str payload, struct channel_answer *out,
                  struct err *err) must_use;
/* The same with a limit of its own. */
bool channel_call_for(struct channel *channel, enum message_type type, struct str payload, uint32_t patience_ms,
                      struct channel_answer *out, struct err *err) must_use;

void channel_reply(struct channel *channel, enum message_type type, uint32_t id, struct str payload, const int *fds,
                   uint32_t fd_count);
void channel_reply_error(struct channel *channel, enum message_type type, uint32_t id, const struct err *why);
void channel_send_event(struct channel *channel, enum message_type type, struct str payload, const int *fds,
                        uint32_t fd_count);

/* Connected, and nothing waits for the other side to read. For events that can be sent later as well. */
bool channel_is_idle(const struct channel *channel);

/*
 * The other side cannot attach descriptors to what it sends on this one: closing a descriptor can take as long as its
 * sender likes. Has no effect on kernels before 6.16.
 */
void channel_refuse_fds(int fd);

/* A pair for channel_new() on both sides: close-on-exec, not blocking. */
bool channel_pair(int out_fds[2], struct err *err) must_use;

#endif
