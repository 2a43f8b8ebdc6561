/*
 * Whether watches that share an inotify instance hear what they would hear alone. The input is a program: directories and
 * files come, move and go, watches begin, pause and end. Each watch has a twin with an instance to itself; at every look
 * both must have heard the same.
 */
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "guest/watch.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

enum {
    WATCHES = 4,
    STEPS_MAX = 64,
    HEARD_BYTES = 64 * 1024,
};

/* Two trees, so that things can move out of what is watched, and back. */
static const char *const dirs[] = { "r",       "r/a", "r/b", "r/a/a", "r/a/b", "r/b/a", "r/a/a/a", "r/a/a/b",
                                    "r/b/a/a", "o",   "o/a", "o/b",   "o/a/a", "o/a/b", "o/b/a",   "l" };

struct ear {
    struct dir_watch *watch;
    size_t len;
    char heard[HEARD_BYTES];
};

static struct guest together, alone[WATCHES];
static struct ear shared[WATCHES], twins[WATCHES];
static char top[] = "/dev/shm/watch_fuzz.XXXXXX";

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void on_event(struct dir_watch *watch, enum watch_event_type type, const char *name, const char *path)
{
    struct ear *ear = dir_watch_owner(watch);
    (void)path;
    ear->len += (size_t)snprintf(ear->heard + ear->len, sizeof ear->heard - ear->len, "%d:%s\n", type, name);
    check(ear->len < sizeof ear->heard);
}

static void on_failed(struct dir_watch *watch, const struct err *err)
{
    (void)watch;
    (void)err;
    abort(); /* nothing here is that large */
}

static const char *path_of(unsigned char which, const char *file)
{
    static char rooms[2][PATH_MAX];
    static unsigned turn;
    char *room = rooms[turn++ % 2];
    (void)snprintf(room, PATH_MAX, "%s/%s%s%s", top, dirs[which % COUNT_OF(dirs)], *file ? "/" : "", file);
    return room;
}

static struct dir_watch *begin(struct guest *guest, struct ear *ear, const char *path, bool is_recursive)
{
    struct err err;
    ear->len = 0;
    return dir_watch_new(
        guest->watchers,
        &(struct dir_watch_want){
            .path = path, .is_recursive = is_recursive, .on_event = on_event, .on_failed = on_failed, .owner = ear },
        &err);
}

static void end(size_t i)
{
    dir_watch_free(shared[i].watch);
    dir_watch_free(twins[i].watch);
    shared[i].watch = twins[i].watch = NULL;
}

static void toggle(size_t i, unsigned char where, bool is_recursive)
{
    if (shared[i].watch) {
        end(i);
        return;
    }
    const char *path = path_of(where, "");
    shared[i].watch = begin(&together, &shared[i], path, is_recursive);
    twins[i].watch = begin(&alone[i], &twins[i], path, is_recursive);
    check(!shared[i].watch == !twins[i].watch);
}

static void look(void)
{
    watchers_look(together.watchers);
    for (size_t i = 0; i < WATCHES; i++) {
        watchers_look(alone[i].watchers);
        if (!shared[i].watch)
            continue;
        check(shared[i].len == twins[i].len && memcmp(shared[i].heard, twins[i].heard, shared[i].len) == 0);
        shared[i].len = twins[i].len = 0;
    }
}

static void pause_both(size_t i, bool pause)
{
    if (!shared[i].watch)
        return;
    dir_watch_pause(shared[i].watch, pause);
    dir_watch_pause(twins[i].watch, pause);
}

static void put(const char *path, const char *text)
{
    auto_close int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        (void)!write(fd, text, strlen(text));
}

/* What does not work does not matter: it is the same for all. */
static void step(unsigned char what, unsigned char a, unsigned char b)
{
    size_t i = a % WATCHES;
    switch (what % 12) {
    case 0:
    case 1:
        (void)mkdir(path_of(a, ""), 0700);
        break;
    case 2:
        (void)rmdir(path_of(a, ""));
        break;
    case 3:
    case 4:
        (void)rename(path_of(a, ""), path_of(b, ""));
        break;
    case 5:
        put(path_of(a, "f"), b % 2 ? "x" : "");
        break;
    case 6:
        (void)unlink(path_of(a, "f"));
        break;
    case 7:
        (void)rename(path_of(a, "f"), path_of(b, "f"));
        break;
    case 8:
        (void)chmod(path_of(a, ""), b % 2 ? 0700 : 0711);
        break;
    case 9:
    case 10:
        toggle(i, b, a & 128);
        break;
    default:
        if (b % 4 == 0)
            pause_both(i, true);
        else if (b % 4 == 1)
            pause_both(i, false);
        look();
    }
}

static void leave(void)
{
    (void)rmdir(top);
}

static void start(void)
{
    together.loop = loop_new();
    together.watchers = watchers_new(&together);
    for (size_t i = 0; i < WATCHES; i++) {
        alone[i].loop = together.loop;
        alone[i].watchers = watchers_new(&alone[i]);
    }
    check(mkdtemp(top));
    (void)atexit(leave);
}

static void stop_loop(struct loop_task *task)
{
    (void)task;
    loop_stop_soon(together.loop);
}

/* A turn of the loop, which frees what has ended. */
static void turn(void)
{
    struct loop_task task = { .fn = stop_loop };
    loop_post(together.loop, &task);
    loop_run(together.loop);
}

static int clear(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    return ftw->level > 0 ? remove(path) : 0;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    if (!together.loop)
        start();
    (void)mkdir(path_of(0, ""), 0700);
    (void)symlink("r/a", path_of(COUNT_OF(dirs) - 1, ""));
    for (size_t at = 0; at + 3 <= size && at < 3 * (size_t)STEPS_MAX; at += 3)
        step(data[at], data[at + 1], data[at + 2]);
    for (size_t i = 0; i < WATCHES; i++)
        pause_both(i, false);
    look();
    for (size_t i = 0; i < WATCHES; i++)
        end(i);
    check(nftw(top, clear, 16, FTW_DEPTH | FTW_PHYS) == 0);
    watchers_look(together.watchers);
    turn();
    return 0;
}
