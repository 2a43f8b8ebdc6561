/*
 * How it works: a timer compares the file's status with the last one. inotify would have to follow the links that
 * resolv.conf usually is, and the directories that programs rename new files in.
 */
#include "daemon/resolvers.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"

struct resolvers {
    struct loop *loop;
    const char *path;
    uint64_t look_ms;
    struct channel *channel; /* NULL: none */
    struct timer timer;
    struct stat seen; /* zero: there is no such file */
    char *text;       /* that could be read last; NULL: none yet */
    size_t len;
};

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec; /* made readable */
}

static struct stat look(const struct resolvers *resolvers)
{
    struct stat now;

    return stat(resolvers->path, &now) == 0 ? now : (struct stat){ 0 };
}

/* A file that cannot be read changes nothing: it may be in the middle of being replaced, and old servers may answer. */
static void read_text(struct resolvers *resolvers)
{
    char *text;
    size_t len;
    struct err err;

    /* Before it is read: a change in between is seen the next time. */
    resolvers->seen = look(resolvers);
    if (!fd_read_file(AT_FDCWD, resolvers->path, LIMIT_RESOLV_CONF_BYTES, &text, &len, &err)) {
        log_warn("%s: %s; make %s readable, or name servers with --dns",
                 resolvers->text ? "sandboxes keep the name servers known so far" : "sandboxes cannot resolve names",
                 err_text(&err), resolvers->path);
        return;
    }
    free(resolvers->text);
    resolvers->text = text;
    resolvers->len = len;
}

static void send_text(struct resolvers *resolvers)
{
    read_text(resolvers);
    if (resolvers->text)
        channel_send_event(resolvers->channel, MESSAGE_RESOLVERS, str_of(resolvers->text, resolvers->len), NULL, 0);
}

static void on_look(struct timer *timer)
{
    struct resolvers *resolvers = container_of(timer, struct resolvers, timer);
    struct stat now = look(resolvers);

    if (resolvers->channel && !is_same(&now, &resolvers->seen))
        send_text(resolvers);
    timer_set(timer, resolvers->loop, resolvers->look_ms, on_look);
}

struct resolvers *resolvers_new(struct loop *loop, const char *path, uint64_t look_ms)
{
    struct resolvers *resolvers = NEW(struct resolvers);

    *resolvers = (struct resolvers){ .loop = loop, .path = path, .look_ms = look_ms };
    timer_set(&resolvers->timer, loop, look_ms, on_look);
    return resolvers;
}

void resolvers_tell(struct resolvers *resolvers, struct channel *channel)
{
    resolvers->channel = channel;
    if (channel)
        send_text(resolvers);
}

void resolvers_free(struct resolvers *resolvers)
{
    if (!resolvers)
        return;
    timer_clear(&resolvers->timer);
    free(resolvers->text);
    free(resolvers);
}
