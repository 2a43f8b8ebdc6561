/*
 * Lines go to the host at once, as one LOG, of which a copy is kept until the host has TAKEN it. Only then the next is sent,
 * with the lines that have gathered meanwhile: the host takes one every LIMIT_LOG_PAUSE_MS. At once, because a sandbox is often
 * killed as soon as its last command has ended: what has reached the host's socket by then is read.
 *
 * A link that ends leaves the copy here, and the next link begins with it: no line is lost with a connection, and none is sent
 * in half. The same front may be told a LOG twice; it knows the last ones again (sandbox/logs.c).
 */
#include "guest/journal.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/encode.h"
#include "base/limits.h"
#include "base/mem.h"
#include "guest/status.h"
#include "wire/guestlink.h"

struct batch {
    struct guestlink_log_line lines[LIMIT_LOG_BATCH];
    char texts[LIMIT_LOG_BATCH][LIMIT_LOG_TEXT_BYTES];
};

struct journal {
    struct loop *loop;
    struct stream *listener; /* the link's; NULL: none, lines wait here */
    struct timer send;
    struct buf sent; /* a LOG that the host has not taken yet, or empty */
    uint32_t count, dropped;
    struct batch *batch; /* NULL until there is a line */
};

struct journal *journal_new(struct loop *loop)
{
    struct journal *journal = NEW(struct journal);

    journal->loop = loop;
    journal->sent = buf_make(NULL, LIMIT_GUESTLINK_BYTES);
    return journal;
}

void journal_free(struct journal *journal)
{
    if (!journal)
        return;
    timer_clear(&journal->send);
    buf_done(&journal->sent);
    free(journal->batch);
    free(journal);
}

static void on_send(struct timer *timer)
{
    struct journal *journal = container_of(timer, struct journal, send);

    guestlink_write_log(&journal->sent, &(struct guestlink_log){ .dropped = journal->dropped,
                                                                 .line_count = journal->count,
                                                                 .lines = journal->batch->lines });
    stream_write(journal->listener, buf_str(&journal->sent));
    journal->count = journal->dropped = 0;
}

/* In the loop's next turn, if there is anything to send and the host is ready for it. */
static void send_soon(struct journal *journal)
{
    if (journal->listener && journal->count && !journal->sent.len && !timer_is_set(&journal->send))
        timer_set(&journal->send, journal->loop, 0, on_send);
}

void journal_listen(struct journal *journal, struct stream *listener)
{
    if (!journal)
        return;
    journal->listener = listener;
    if (journal->sent.len)
        stream_write(listener, buf_str(&journal->sent));
    send_soon(journal);
}

void journal_leave(struct journal *journal)
{
    if (!journal)
        return;
    journal->listener = NULL;
    timer_clear(&journal->send);
}

void journal_taken(struct journal *journal)
{
    if (!journal)
        return;
    buf_done(&journal->sent); /* the memory too: most sandboxes are idle most of the time */
    journal->sent = buf_make(NULL, LIMIT_GUESTLINK_BYTES);
    send_soon(journal);
}

static void add(struct journal *journal, struct guestlink_log_line line)
{
    if (!journal)
        return;
    if (journal->count == LIMIT_LOG_BATCH) {
        journal->dropped++;
        return;
    }
    if (!journal->batch)
        journal->batch = NEW(struct batch);
    char *text = journal->batch->texts[journal->count];
    if (line.text.len)
        memcpy(text, line.text.at, line.text.len);
    line.text.at = text;
    line.at_us = clock_wall_us();
    journal->batch->lines[journal->count++] = line;
    send_soon(journal);
}

/* As much as fits, without half a character at its end. */
static struct str shorten(struct str text)
{
    if (text.len <= LIMIT_LOG_TEXT_BYTES)
        return text;
    text.len = LIMIT_LOG_TEXT_BYTES;
    while (text.len && ((unsigned char)text.at[text.len] & 0xc0) == 0x80)
        text.len--;
    return text;
}

void journal_started(struct journal *journal, pid_t pid, struct str command)
{
    struct arena arena;

    arena_init(&arena);
    add(journal, (struct guestlink_log_line){ .kind = GUESTLINK_LOG_STARTED,
                                              .pid = (uint32_t)pid,
                                              .text = shorten(utf8_repair(&arena, command)) });
    arena_done(&arena);
}

void journal_ended(struct journal *journal, pid_t pid, int status, uint64_t output_bytes)
{
    struct arena arena;

    arena_init(&arena);
    add(journal, (struct guestlink_log_line){ .kind = GUESTLINK_LOG_ENDED,
                                              .pid = (uint32_t)pid,
                                              .exit_code = status_exit_code(status),
                                              .output_bytes = output_bytes,
                                              .text = shorten(status_text(&arena, status)) });
    arena_done(&arena);
}
