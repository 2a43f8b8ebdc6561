/*
 * mail_sockets.h - WebSockets of LobsterMail's dialect: events of inboxes, as they happen.
 *
 * A client sends {"type":"subscribe"|"unsubscribe","id":…,"inbox_ids":[…]} and gets {"type":"event",…} with the whole
 * message, but for its text. What it may read is checked for each event, with the key that it came with: a key that was
 * revoked ends its sockets.
 *
 * Threads    The loop's.
 */
#ifndef API_MAIL_SOCKETS_H
#define API_MAIL_SOCKETS_H

#include "api/mail_events.h"
#include "api/request.h"

struct mail_sockets;

struct mail_sockets_config {
    const struct api_config *api;
    struct lane *lane;
    struct mail_events *events;
};
/* What the configuration points to must outlive it. */
struct mail_sockets *mail_sockets_new(const struct mail_sockets_config *config) must_use;
/* When the workers are freed. Ends all that are left. */
void mail_sockets_free(struct mail_sockets *sockets);

/* On the loop: the request becomes a WebSocket, or is answered. For mail_later(). `accept`: of the handshake. */
void mail_socket_open(struct mail_sockets *sockets, struct request *rq, const char *accept);

#endif
