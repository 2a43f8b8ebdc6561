/*
 * A zygote's reports to keeper, which is root: code of a template can write them. A byte of length, then a report; the
 * length 255 is a socket that the zygote is given instead.
 */
#include "isolation/native/zygotes.c" /* for its static functions */

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

enum { SOCKET = 255 };

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void try_complaint(struct str message)
{
    char said[256];

    (void)snprintf(said, sizeof said, "%.*s", STR_ARG(message));
    for (const char *at = failure_text(said); *at; at++)
        check(*at >= ' ' && *at <= '~');
}

/* The timer runs if and only if keeper waits for a report. */
static void check_zygote(const struct zygote *zygote, unsigned sockets, bool said_ready)
{
    bool owes =
        zygote->state == ZYGOTE_STARTING || (zygote->state == ZYGOTE_LIVING && (zygote->unanswered || zygote->is_busy));

    check(zygote->state == ZYGOTE_STARTING || zygote->state == ZYGOTE_LIVING || zygote->state == ZYGOTE_ENDING);
    check(zygote->state != ZYGOTE_LIVING || said_ready);
    check(zygote->unanswered <= sockets);
    check(timer_is_set(&zygote->patience) == owes);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    static struct zygotes zygotes;
    struct str rest = str_of(data, size);
    unsigned sockets = 0;
    bool said_ready = false;
    int pair[2];

    if (!zygotes.config.loop) {
        log_setup("fuzz", LOG_ERROR);
        zygotes.config.loop = loop_new();
    }
    if (pipe2(pair, O_CLOEXEC | O_NONBLOCK) < 0)
        abort();
    struct zygote *zygote = NEW(struct zygote);
    zygote->zygotes = &zygotes;
    zygote->plan.layer_count = 1;
    zygote->pidfd = -1; /* there is no process to kill */
    zygote->control_fd = -1;
    zygote->report_fd = pair[0];
    zygote->state = ZYGOTE_STARTING;
    expect_answer(zygote);
    while (rest.len && zygote->state != ZYGOTE_ENDING) {
        size_t length = (unsigned char)rest.at[0];
        rest = str_of(rest.at + 1, rest.len - 1);
        if (length == SOCKET) {
            zygote->unanswered++;
            sockets++;
            expect_answer(zygote);
        } else {
            struct str message = str_of(rest.at, MIN(length, rest.len));
            rest = str_of(rest.at + message.len, rest.len - message.len);
            said_ready |= message.len && memchr(message.at, ZYGOTE_READY, message.len);
            try_complaint(message);
            check(!message.len || write(pair[1], message.at, message.len) == (ssize_t)message.len);
            on_report(zygote, WATCH_READ);
        }
        check_zygote(zygote, sockets, said_ready);
    }
    timer_clear(&zygote->patience);
    free(zygote);
    fd_close(&pair[0]);
    fd_close(&pair[1]);
    return 0;
}
