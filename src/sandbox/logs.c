/*
 * Two kinds of objects. A book is what is kept of one sandbox: a queue of lines, under the lock. A reader is the link to one
 * guestd, used on the loop alone; it finds its book by the sandbox's id, and ends when the link does.
 */
#include "sandbox/logs.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/fnv.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"
#include "sandbox/inside.h"
#include "wire/guestlink.h"

/* What one LOG takes at most: each line has less than 64 bytes besides its text. */
enum { INPUT_BYTES = GUESTLINK_HEADER_BYTES + 64 + LIMIT_LOG_BATCH * (LIMIT_LOG_TEXT_BYTES + 64) };

enum { HEARD = 4 }; /* messages of guestd that are known again: it has one under way at a time */

/* Of a refusal: the sentence has a host name in it. */
enum { REFUSED_TEXT_BYTES = 512, REFUSED_RULE_BYTES = 64, REFUSED_DESTINATION_BYTES = 300 };

struct line {
    struct line *next;
    struct sandbox_log log; /* its texts stand behind it */
    char text[];
};

struct book {
    struct book *next_ended; /* among the ended, the oldest first */
    char id[LIMIT_ID_BYTES];
    char team_id[STORE_UUID_BYTES];
    int64_t begun_us, ended_us;
    struct line *first, **last;
    size_t bytes, count;
    size_t refused_bytes; /* of `bytes`, lines about refusals */
    /*
     * Sums of guestd's last messages. It says one again on a new link if it has not read that it was taken, and the old link may
     * still bring it too. Its lines have their times, so no two messages are alike.
     */
    uint64_t heard[HEARD];
    unsigned next_heard;
};

struct reader {
    struct reader *next, **at;
    struct logs *logs;
    char id[LIMIT_ID_BYTES];
    int fd;
    bool hung_up; /* guestd closed the link: nothing more comes */
    struct loop_task begin;
    struct watch *watch;
    struct timer pause;
};

struct logs {
    struct loop *loop;
    pthread_mutex_t lock;
    struct map books; /* by id */
    struct book *first_ended, **last_ended;
    size_t ended_count;
    struct reader *readers; /* under the lock as well: a worker adds to it */
    char room[INPUT_BYTES]; /* the loop's: the message that is looked at */
};

/* ---- books ---- */

static size_t cost_of(const struct line *line)
{
    return sizeof *line + line->log.text.len + line->log.rule.len + line->log.destination.len;
}

/* Takes out the line that this pointer leads to. */
static void drop_line(struct book *book, struct line **at)
{
    struct line *line = *at;

    *at = line->next;
    if (!*at)
        book->last = at;
    book->bytes -= cost_of(line);
    if (line->log.kind == SANDBOX_LOG_REFUSED)
        book->refused_bytes -= cost_of(line);
    book->count--;
    free(line);
}

static void drop_oldest_line(struct book *book)
{
    drop_line(book, &book->first);
}

static void drop_oldest_refusal(struct book *book)
{
    struct line **at = &book->first;

    while ((*at)->log.kind != SANDBOX_LOG_REFUSED)
        at = &(*at)->next;
    drop_line(book, at);
}

static void book_free(struct book *book)
{
    while (book->first)
        drop_oldest_line(book);
    free(book);
}

/* Copies a text to *at, and moves both past it. */
static void keep_text(struct str *text, char **at)
{
    if (text->len)
        memcpy(*at, text->at, text->len);
    text->at = *at;
    *at += text->len;
}

static void book_add(struct book *book, const struct sandbox_log *log)
{
    struct line *line = mem_new(sizeof *line + log->text.len + log->rule.len + log->destination.len);
    char *at = line->text;

    line->log = *log;
    keep_text(&line->log.text, &at);
    keep_text(&line->log.rule, &at);
    keep_text(&line->log.destination, &at);
    *book->last = line;
    book->last = &line->next;
    book->bytes += cost_of(line);
    if (log->kind == SANDBOX_LOG_REFUSED)
        book->refused_bytes += cost_of(line);
    book->count++;
    while (book->refused_bytes > LIMIT_LOG_REFUSED_BYTES)
        drop_oldest_refusal(book);
    while (book->bytes > LIMIT_LOG_BYTES)
        drop_oldest_line(book);
}

/* With the lock held. */
static void forget_old(struct logs *logs, int64_t now_us)
{
    while (logs->first_ended && (logs->ended_count > LIMIT_LOGS_KEPT ||
                                 now_us - logs->first_ended->ended_us > LIMIT_METRICS_KEPT_S * INT64_C(1000000))) {
        struct book *book = logs->first_ended;
        logs->first_ended = book->next_ended;
        if (!logs->first_ended)
            logs->last_ended = &logs->first_ended;
        logs->ended_count--;
        (void)map_remove(&logs->books, str_from(book->id));
        book_free(book);
    }
}

void logs_end(struct logs *logs, struct str id, int64_t now_us)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&logs->lock);
    struct book *book = map_get(&logs->books, id);

    if (!book || book->ended_us)
        return;
    book->ended_us = now_us;
    *logs->last_ended = book;
    logs->last_ended = &book->next_ended;
    logs->ended_count++;
    forget_old(logs, now_us);
}

void logs_add(struct logs *logs, struct str id, const struct sandbox_log *log)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&logs->lock);
    struct book *book = map_get(&logs->books, id);
    struct sandbox_log cut = *log;

    if (!book || book->ended_us)
        return;
    cut.text.len = MIN(cut.text.len, (size_t)REFUSED_TEXT_BYTES);
    cut.rule.len = MIN(cut.rule.len, (size_t)REFUSED_RULE_BYTES);
    cut.destination.len = MIN(cut.destination.len, (size_t)REFUSED_DESTINATION_BYTES);
    cut.at_us = MAX(cut.at_us, book->begun_us);
    book_add(book, &cut);
}

/* ---- readers ---- */

static void reader_free(void *object)
{
    struct reader *reader = object;

    fd_close(&reader->fd);
    free(reader);
}

/* With the lock held. */
static void reader_leave(struct reader *reader)
{
    *reader->at = reader->next;
    if (reader->next)
        reader->next->at = reader->at;
}

static void stop_listening(struct reader *reader)
{
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&reader->logs->lock);
        reader_leave(reader);
    }
    timer_clear(&reader->pause);
    watch_free(take_ptr(&reader->watch));
    loop_retire(reader->logs->loop, reader, reader_free);
}

static struct sandbox_log log_of(const struct guestlink_log_line *line, const struct book *book, int64_t now_us)
{
    return (struct sandbox_log){
        /* guestd has our clock, but a guest that took guestd over could send any time. */
        .at_us = MAX(MIN(line->at_us, now_us), book->begun_us),
        .kind = line->kind == GUESTLINK_LOG_STARTED ? SANDBOX_LOG_STARTED : SANDBOX_LOG_ENDED,
        .pid = line->pid,
        .exit_code = line->exit_code,
        .output_bytes = line->output_bytes,
        .text = line->text,
    };
}

static bool was_heard(struct book *book, struct str body)
{
    uint64_t sum = fnv_add(FNV_START, body);

    for (size_t i = 0; i < HEARD; i++)
        if (book->heard[i] == sum)
            return true;
    book->heard[book->next_heard++ % HEARD] = sum;
    return false;
}

static void write_down(struct reader *reader, struct str body, const struct guestlink_log *log)
{
    int64_t now_us = clock_wall_us();

    auto_unlock pthread_mutex_t *held = lock_mutex(&reader->logs->lock);
    struct book *book = map_get(&reader->logs->books, str_from(reader->id));
    if (!book || was_heard(book, body))
        return;
    if (log->dropped)
        book_add(book, &(struct sandbox_log){ .at_us = now_us, .kind = SANDBOX_LOG_DROPPED, .count = log->dropped });
    for (uint32_t i = 0; i < log->line_count; i++) {
        struct sandbox_log one = log_of(&log->lines[i], book, now_us);
        book_add(book, &one);
    }
}

/* False if guestd does not read its answers. One that is gone is no failure here: what it has sent can still be read. */
static bool say_taken(const struct reader *reader)
{
    auto_buf struct buf out = buf_make(NULL, GUESTLINK_HEADER_BYTES + 1);

    guestlink_write_simple(&out, GUESTLINK_TAKEN);
    return send(reader->fd, out.data, out.len, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

/* One message. False if guestd does not keep to the rules. */
static bool take_body(struct reader *reader, struct str body)
{
    struct guestlink_message message;
    struct arena arena;
    struct err ignored; /* guestd's mistake: the sandbox loses its log, no more */

    arena_init(&arena);
    bool fine = guestlink_read(body, &arena, &message, &ignored);
    bool is_log = fine && message.type == GUESTLINK_LOG;
    if (is_log)
        write_down(reader, body, &message.log);
    arena_done(&arena);
    /*
     * An error answers a message of ours that is newer than this guestd, whose sandbox has outlived an upgrade. READY
     * comes late, when nobody waits for it any more.
     */
    return is_log ? say_taken(reader)
                  : fine && (message.type == GUESTLINK_OK || message.type == GUESTLINK_ERROR ||
                             message.type == GUESTLINK_READY);
}

static void on_pause_over(struct timer *timer)
{
    watch_want(container_of(timer, struct reader, pause)->watch, WATCH_READ | WATCH_HANGUP);
}

/* False: the link is at its end. */
static bool take_message(struct reader *reader)
{
    char *room = reader->logs->room;
    struct err ignored;
    uint32_t length;

    ssize_t n = recv(reader->fd, room, INPUT_BYTES, MSG_PEEK | MSG_DONTWAIT);
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    if (n < GUESTLINK_HEADER_BYTES)
        return !reader->hung_up;
    if (!guestlink_body_length((const unsigned char *)room, &length, &ignored) ||
        length > INPUT_BYTES - GUESTLINK_HEADER_BYTES)
        return false;
    ssize_t whole = GUESTLINK_HEADER_BYTES + (ssize_t)length;
    if (n < whole)
        return !reader->hung_up; /* left where it is until all of it is there */
    return take_body(reader, str_of(room + GUESTLINK_HEADER_BYTES, length)) &&
           recv(reader->fd, room, whole, MSG_DONTWAIT) == whole;
}

/* A message at a time, and then a pause: bounds the work that guestd can cause. */
static void on_ready(void *context, unsigned ready)
{
    struct reader *reader = context;

    reader->hung_up = (ready & WATCH_HANGUP) != 0;
    if (!take_message(reader)) {
        stop_listening(reader);
        return;
    }
    watch_want(reader->watch, 0);
    timer_set(&reader->pause, reader->logs->loop, LIMIT_LOG_PAUSE_MS, on_pause_over);
}

static void on_begin(struct loop_task *task)
{
    struct reader *reader = container_of(task, struct reader, begin);
    const int room = 2 * INPUT_BYTES;

    /* A message is taken when all of it is there, so the buffer must hold a whole one. */
    (void)setsockopt(reader->fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room); /* the default is enough, too */
    reader->watch = watch_new(reader->logs->loop, reader->fd, on_ready, reader);
    watch_want(reader->watch, WATCH_READ | WATCH_HANGUP);
}

/* With the lock held. */
static void open_book(struct logs *logs, struct str team_id, struct str id, int64_t begun_us)
{
    struct book *book = NEW(struct book);

    memcpy(book->id, id.at, MIN(id.len, sizeof book->id - 1));
    memcpy(book->team_id, team_id.at, MIN(team_id.len, sizeof book->team_id - 1));
    book->begun_us = begun_us;
    book->last = &book->first;
    (void)map_put(&logs->books, str_from(book->id), book);
}

void logs_begin(struct logs *logs, struct str team_id, struct str id, int64_t begun_us, int guestlink_fd)
{
    struct reader *reader = NEW(struct reader);

    memcpy(reader->id, id.at, MIN(id.len, sizeof reader->id - 1));
    reader->logs = logs;
    reader->fd = guestlink_fd;
    reader->begin.fn = on_begin;
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&logs->lock);
        if (!map_get(&logs->books, id)) /* else it has a new link, and the book goes on: ids are not given twice */
            open_book(logs, team_id, id, begun_us);
        reader->next = logs->readers;
        reader->at = &logs->readers;
        if (reader->next)
            reader->next->at = &reader->next;
        logs->readers = reader;
    }
    loop_post(logs->loop, &reader->begin);
}

enum logs_told logs_tell_network(struct logs *logs, struct str id, const struct guestlink_network *network)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_AUTHORITY_BYTES + LIMIT_INSIDE_BYTES + 64);

    guestlink_write_network(&out, network);
    auto_unlock pthread_mutex_t *held = lock_mutex(&logs->lock);
    const struct reader *reader = logs->readers;
    while (reader && !str_eq(str_from(reader->id), id))
        reader = reader->next;
    if (!reader)
        return LOGS_NO_LINK;
    if (send(reader->fd, out.data, out.len, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)out.len)
        return LOGS_TOLD;
    (void)shutdown(reader->fd, SHUT_RDWR); /* after half a message no other would decode; the reader sees the end */
    return LOGS_CUT;
}

/* ---- all of them ---- */

struct logs *logs_new(struct loop *loop)
{
    struct logs *logs = NEW(struct logs);

    logs->loop = loop;
    pthread_mutex_init(&logs->lock, NULL);
    map_init(&logs->books);
    logs->last_ended = &logs->first_ended;
    return logs;
}

void logs_free(struct logs *logs)
{
    struct book *book;

    if (!logs)
        return;
    for (struct reader *reader = logs->readers, *next; reader; reader = next) {
        next = reader->next;
        timer_clear(&reader->pause);
        watch_free(take_ptr(&reader->watch));
        reader_free(reader);
    }
    for (size_t i = 0; (book = map_next(&logs->books, &i));)
        book_free(book);
    map_done(&logs->books);
    pthread_mutex_destroy(&logs->lock);
    free(logs);
}

void logs_get(struct logs *logs, struct str team_id, struct str id, int64_t from_us, int64_t to_us, struct arena *arena,
              struct sandbox_log **out, size_t *out_count)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&logs->lock);
    struct book *book = map_get(&logs->books, id);
    bool is_theirs = book && str_eq(str_from(book->team_id), team_id);
    struct sandbox_log *list = ARENA_ARRAY(arena, struct sandbox_log, is_theirs ? book->count : 0);
    size_t count = 0;

    for (const struct line *line = is_theirs ? book->first : NULL; line; line = line->next) {
        if (line->log.at_us < from_us || (to_us && line->log.at_us > to_us))
            continue;
        struct sandbox_log *log = &list[count++];
        *log = line->log;
        log->text = arena_copy(arena, line->log.text);
        log->rule = arena_copy(arena, line->log.rule);
        log->destination = arena_copy(arena, line->log.destination);
    }
    *out = list;
    *out_count = count;
}

void sandbox_logs(struct sandboxes *all, struct str team_id, struct str id, int64_t from_us, int64_t to_us,
                  struct arena *arena, struct sandbox_log **out, size_t *out_count)
{
    logs_get(all->logs, team_id, id, from_us, to_us, arena, out, out_count);
}
