/*
 * The handshake of LobsterMail's WebSocket, RFC 6455 section 4.2. The key is in the query: a browser cannot send headers.
 */
#include "api/mail_lobstermail.h"
#include "api/mail_sockets.h"
#include "wire/websocket.h"

static void open_socket(struct request *rq)
{
    mail_socket_open(mail_sockets_of(rq), rq, rq->mail->context);
}

static void on_gone(struct request *rq)
{
    (void)rq; /* nothing was begun */
}

void lm_socket(struct request *rq)
{
    const struct http_head *head = &rq->ex->head;
    const struct str *key = http_header(head, STR("Sec-WebSocket-Key"));
    char *accept = arena_alloc(rq->arena, WEBSOCKET_ACCEPT_BYTES);

    if (!head->upgrade || !http_has_token(head, STR("Upgrade"), STR("websocket")) || !key) {
        mail_reply_problem(rq, 426, "This path is a WebSocket: connect with ws:// or wss://");
        reply_field(rq, STR("Upgrade"), STR("websocket"));
        return;
    }
    const struct str *version = http_header(head, STR("Sec-WebSocket-Version"));
    if (!version || !str_eq(*version, STR("13"))) {
        mail_reply_problem(rq, 426, "Only version 13 of WebSocket is spoken here");
        reply_field(rq, STR("Sec-WebSocket-Version"), STR("13"));
        return;
    }
    if (!websocket_accept(*key, accept)) {
        mail_reply_problem(rq, 400, "Sec-WebSocket-Key must be 16 bytes in base64");
        return;
    }
    mail_later(rq, open_socket, on_gone, accept);
}
