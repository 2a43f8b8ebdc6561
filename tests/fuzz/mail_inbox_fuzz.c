/*
 * A real worker of an inbox, fed with one request after the other through its connection: it answers each, with a result or
 * an error, and goes on. An input is an operation's number and its packed fields. The key "k" with zeroes may read.
 *
 * The inbox is made anew after a while, so that its file stays small and one input depends on few others.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "mail/inbox.h"
#include "mail/inside.h"
#include "privsep/frame.h"
#include "privsep/message.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

#define INBOX "01HZZZZZZZZZZZZZZZZZZZZZZZ"
enum { INPUTS_EACH = 200 };

static char dir[] = "/tmp/cloister-fuzz.XXXXXX";
static int connection = -1;
static pthread_t worker;
static unsigned inputs;

static void *serve(void *at)
{
    int fd = *(int *)at;
    struct err err;

    free(at);
    /* A current directory of this thread's own: the corpus may be named relative to that of the program. */
    if (unshare(CLONE_FS) < 0 || chdir(dir) < 0)
        abort();
    (void)inbox_serve(fd, &err);
    close(fd);
    return NULL;
}

static void say(struct str frame)
{
    struct err err;

    if (!frame_write(connection, frame, 0, &err))
        abort();
}

/* The worker's answer; it must be one. True: not an error. */
static bool hear(void)
{
    auto_free char *frame = NULL;
    struct err err, why;
    size_t len;

    if (!frame_read(connection, LIMIT_MAIL_FRAME_BYTES, 0, &frame, &len, &err))
        abort();
    struct unpack in = unpack_from(str_of(frame, len));
    bool fine = unpack_bool(&in);
    if (!fine) {
        message_unpack_err(&in, &why);
        if (!unpack_done(&in, &err))
            abort();
    }
    return fine;
}

static void leave(void)
{
    static const char *const names[] = { "inbox.db", "inbox.db-wal", "inbox.db-journal" };

    if (connection < 0)
        return;
    close(connection);
    (void)pthread_join(worker, NULL);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[64];
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
}

static void begin(void)
{
    auto_buf struct buf out = buf_make(NULL, 4096);
    const struct mail_reader reader = { .key_id = "k" };
    const struct seal_key zeroes = { 0 };
    int *far_end = NEW(int);
    int pair[2];

    leave();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        abort();
    connection = pair[0];
    *far_end = pair[1];
    if (pthread_create(&worker, NULL, serve, far_end) != 0)
        abort();
    pack_str(&out, STR(INBOX));
    seal_key_pack(&out, &zeroes);
    say(buf_str(&out));
    buf_clear(&out);
    pack_u16(&out, INBOX_MAKE);
    pack_u32(&out, 1);
    mail_reader_pack(&out, &reader);
    pack_str(&out, STR("fuzz"));
    pack_bool(&out, false);
    pack_i64(&out, 1);
    say(buf_str(&out));
    if (!hear())
        abort();
}

static void clean_up(void)
{
    leave();
    (void)rmdir(dir);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    log_setup("fuzz", LOG_ERROR);
    if (!mkdtemp(dir))
        abort();
    (void)atexit(clean_up);
    return 0;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct unpack in = unpack_from(str_of(data, size));

    if (inputs++ % INPUTS_EACH == 0)
        begin();
    say(str_of(data, size));
    if (hear() && unpack_u16(&in) == INBOX_SHRED)
        inputs = 0; /* the next one gets another */
    return 0;
}
