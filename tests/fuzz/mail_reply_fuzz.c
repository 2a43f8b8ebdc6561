/*
 * Front asks a worker that answers anything: a process that serves one inbox must not harm front, whatever it says. The first
 * byte of an input chooses the call; the rest are its answers, each with a length of two bytes in front. A call that asks
 * more often than there are answers finds that the worker has died. Each answer is on a connection of its own.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "mail/inside.h"
#include "privsep/frame.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

#define INBOX "01HZZZZZZZZZZZZZZZZZZZZZZZ"
#define MESSAGE "01HV0000000000000000000000ZZZZZZZZZZ"
enum { CONNECTIONS = 64 };

static struct str answers;
static int far_ends[CONNECTIONS], opened;
static struct mail_approver approver;
static struct mail_reader reader = { .key_id = "k" };

static bool open_inbox(void *context, const char *inbox_id, bool make, int *out_fd, struct err *err)
{
    size_t len = answers.len < 2 ? 0 : (size_t)((unsigned char)answers.at[0] << 8 | (unsigned char)answers.at[1]);
    int pair[2];

    (void)context, (void)inbox_id, (void)make;
    if (answers.len < 2 || opened == CONNECTIONS)
        return err_set(err, ERR_UNAVAILABLE, "the worker has died");
    len = MIN(len, answers.len - 2);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        abort();
    if (!frame_write(pair[1], str_of(answers.at + 2, len), 0, err))
        abort();
    (void)shutdown(pair[1], SHUT_WR); /* the next answer is on another connection */
    answers = str_of(answers.at + 2 + len, answers.len - 2 - len);
    far_ends[opened++] = pair[1];
    *out_fd = pair[0];
    return true;
}

/* ---- calls ---- */

typedef void call_fn(struct mail *mail, struct arena *arena, struct err *err);

static const struct mail_content *content(struct arena *arena)
{
    struct mail_content *made = ARENA_NEW(arena, struct mail_content);

    made->recipients = ARENA_NEW(arena, struct str);
    *made->recipients = STR("a@b.example");
    made->recipient_count = 1;
    made->mime = STR("MIME");
    return made;
}

static struct mail_accept accept_of(const struct mail_content *sent)
{
    return (struct mail_accept){ .inbox_id = INBOX,
                                 .composer = STR("composer"),
                                 .content = sent,
                                 .mode = MAIL_GATED_SEND,
                                 .hold_us = 1,
                                 .want_link = true,
                                 .inbox_public = &approver.public_key,
                                 .approver_public = &approver.public_key };
}

static void call_accept(struct mail *mail, struct arena *arena, struct err *err)
{
    const struct mail_accept want = accept_of(content(arena));
    struct mail_accepted accepted;
    uint32_t retry_s;

    (void)!mail_accept(mail, &want, arena, &accepted, &retry_s, err);
}

static void call_reschedule(struct mail *mail, struct arena *arena, struct err *err)
{
    const struct mail_accept want = accept_of(NULL);
    struct mail_message message;

    (void)!mail_reschedule(mail, &want, MESSAGE, arena, &message, err);
}

static void call_edit(struct mail *mail, struct arena *arena, struct err *err)
{
    const struct mail_accept want = accept_of(content(arena));
    struct mail_message message;

    (void)!mail_reschedule(mail, &want, MESSAGE, arena, &message, err);
}

static void call_pending(struct mail *mail, struct arena *arena, struct err *err)
{
    struct mail_message *messages;
    size_t count;

    (void)!mail_pending(mail, INBOX, &approver, arena, &messages, &count, err);
}

static void call_held(struct mail *mail, struct arena *arena, struct err *err)
{
    struct mail_message message;

    (void)!mail_held_get(mail, INBOX, STR(MESSAGE), &approver, arena, &message, err);
}

static void call_decide(struct mail *mail, struct arena *arena, struct err *err)
{
    const struct mail_decision decision = {
        .inbox_id = INBOX, .message_id = MESSAGE, .approver = &approver, .reason = STR("no"), .mode = MAIL_GATED_SEND
    };
    struct mail_message message;

    (void)!mail_decide(mail, &decision, arena, &message, err);
}

static void call_cancel(struct mail *mail, struct arena *arena, struct err *err)
{
    struct mail_message message;

    (void)!mail_cancel(mail, INBOX, MESSAGE, STR("composer"), MAIL_SCOPE_SEND, arena, &message, err);
}

static void call_pull_back(struct mail *mail, struct arena *arena, struct err *err)
{
    uint32_t count;

    (void)arena;
    (void)!mail_pull_back(mail, INBOX, MAIL_GATED_ALL, &approver.public_key, STR("operator"), &count, err);
}

static void call_tick(struct mail *mail, struct arena *arena, struct err *err)
{
    struct mail_tick tick;

    (void)arena;
    (void)!mail_tick(mail, INBOX, MAIL_GATED_SEND, &approver.public_key, 1, &tick, err);
}

static void call_claim(struct mail *mail, struct arena *arena, struct err *err)
{
    struct mail_release release;
    struct mail_content claimed;

    if (mail_claim(mail, INBOX, MAIL_GATED_SEND, &approver.public_key, 1, arena, &release, &claimed, err) &&
        release.is_approved && mail_approval_valid(mail, &release))
        abort(); /* nobody has approved anything */
}

static void call_link(struct mail *mail, struct arena *arena, struct err *err)
{
    static const struct str token = STR_INIT(MESSAGE "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"); /* fifty */
    struct mail_link link;
    struct mail_message message;

    if (mail_link_open(mail, token, INBOX, 0, 1, arena, &link, &message, err))
        abort(); /* it has no key to wrap */
}

static void call_audit(struct mail *mail, struct arena *arena, struct err *err)
{
    struct mail_audit *rows;
    size_t count;

    (void)!mail_audit_list(mail, INBOX, 0, 10, arena, &rows, &count, err);
}

static void call_list(struct mail *mail, struct arena *arena, struct err *err)
{
    const struct mail_filter filter = { .inbound = true, .outbound = true, .in_status = -1, .state = -1, .limit = 10 };
    struct mail_page page;

    (void)!mail_list(mail, INBOX, &reader, &filter, arena, &page, err);
}

static void call_read(struct mail *mail, struct arena *arena, struct err *err)
{
    struct mail_message message;

    (void)!mail_read(mail, INBOX, &reader, STR(MESSAGE), MAIL_WANT_TEXT, arena, &message, err);
}

static void call_threads(struct mail *mail, struct arena *arena, struct err *err)
{
    struct mail_thread *threads;
    size_t count;
    bool more;

    (void)!mail_thread_list(mail, INBOX, &reader, STR(""), 10, arena, &threads, &count, &more, err);
}

static void call_webhooks(struct mail *mail, struct arena *arena, struct err *err)
{
    struct mail_webhook *webhooks;
    size_t count;

    (void)!mail_webhook_list(mail, INBOX, arena, &webhooks, &count, err);
}

static call_fn *const calls[] = {
    call_accept, call_reschedule, call_edit, call_pending, call_held, call_decide, call_cancel,  call_pull_back,
    call_tick,   call_claim,      call_link, call_audit,   call_list, call_read,   call_threads, call_webhooks,
};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct err err;

    (void)argc;
    (void)argv;
    log_setup("fuzz", LOG_ERROR);
    if (!seal_begin(&err))
        abort();
    seal_pair_of(STR("approver"), "fuzz", &approver.public_key, &approver.private_key);
    approver.id = STR("approver");
    approver.scopes = MAIL_SCOPE_OVERSIGHT;
    return 0;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct mail_config config = { .open_inbox = open_inbox };
    struct arena arena;
    struct err err;

    if (!size)
        return 0;
    seal_pair_of(STR("server"), "fuzz", &config.server_public, &config.server_private);
    answers = str_of(data + 1, size - 1);
    arena_init(&arena);
    struct mail *mail = mail_new(&config);
    calls[data[0] % COUNT_OF(calls)](mail, &arena, &err);
    mail_free(mail);
    arena_done(&arena);
    while (opened)
        close(far_ends[--opened]);
    return 0;
}
