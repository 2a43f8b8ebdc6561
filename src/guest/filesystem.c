/*
 * filesystem.c - Stat, MakeDir, Move, ListDir and Remove. What may take long goes to a worker; what is quick is done on
 * the loop.
 */
#include "guest/filesystem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/remove.h"
#include "guest/entry.h"
#include "guest/path.h"

/* The path of a request, resolved for its user. False if it was answered. */
static bool take_path(struct rpc *rpc, const json_t *request, const char *name, const char **out_path)
{
    struct str path = STR("");
    struct err err;

    if (json_take_str(request, name, JSON_OPTIONAL, &path, &err) &&
        path_resolve(rpc->arena, path, &rpc->user, rpc->guest->default_workdir, out_path, &err))
        return true;
    rpc_fail_err(rpc, &err);
    return false;
}

/* For errors of the kernel that the API has no code for. */
static void fail_errno(struct rpc *rpc, const char *doing, const char *path, int number)
{
    char reason[64];
    enum connect_code code = number == ENAMETOOLONG ? CONNECT_INVALID_ARGUMENT : CONNECT_INTERNAL;

    rpc_fail(rpc, code, "error %s %s: %s", doing, path, strerror_r(number, reason, sizeof reason));
}

static enum entry_detail detail_for(struct rpc *rpc)
{
    const struct str *agent = http_header(&rpc->ex->head, STR("user-agent"));

    if (!agent || !str_eq(*agent, STR("connect-python")))
        return ENTRY_FULL;
    rpc->extra_field = (struct http_field){ STR("X-E2B-Legacy-SDK"), STR("true") };
    return ENTRY_LEGACY;
}

static void reply_entry(struct rpc *rpc, const char *path, const struct stat *st)
{
    struct buf body = buf_make(rpc->arena, LIMIT_LIST_BYTES);
    struct json_out out = json_out_to(&body);

    json_out_object(&out, NULL);
    entry_write(&out, "entry", path, st, detail_for(rpc), rpc->guest->users, rpc->arena);
    json_out_end(&out);
    rpc_reply(rpc, buf_str(&body));
}

/* ---- Stat ---- */

static void call_stat(struct rpc *rpc, const json_t *request)
{
    const char *path;
    struct stat st;

    if (!take_path(rpc, request, "path", &path))
        return;
    if (lstat(path, &st) == 0)
        reply_entry(rpc, path, &st);
    else if (errno == ENOENT)
        rpc_fail(rpc, CONNECT_NOT_FOUND, "file not found: lstat %s: no such file or directory", path);
    else
        fail_errno(rpc, "getting file info of", path, errno);
}

/* ---- MakeDir ---- */

static void call_make_dir(struct rpc *rpc, const json_t *request)
{
    const char *path;
    struct stat st;
    struct str message;
    struct err err;

    if (!take_path(rpc, request, "path", &path))
        return;
    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            rpc_fail(rpc, CONNECT_ALREADY_EXISTS, "directory already exists: %s", path);
        else
            rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "path already exists but it is not a directory: %s", path);
        return;
    }
    if (!path_make_dirs(rpc->arena, path, &rpc->user, &message, &err)) {
        if (message.len)
            rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "%.*s", STR_ARG(message));
        else
            fail_errno(rpc, "creating directory", path, err.sys);
        return;
    }
    if (lstat(path, &st) < 0)
        fail_errno(rpc, "getting file info of", path, errno);
    else
        reply_entry(rpc, path, &st);
}

/* ---- Move ---- */

enum { QUICK_FILE_BYTES = 16 << 20 };

/*
 * On a worker: the kernel may have to free a large file, or copy it in an overlay, which takes as long as the disk
 * needs. The guest decides how fragmented it is.
 */
static bool is_quick(const char *path)
{
    struct stat st;

    return lstat(path, &st) < 0 || (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) ||
           (st.st_size <= QUICK_FILE_BYTES && (uint64_t)st.st_blocks * 512 <= QUICK_FILE_BYTES);
}

struct moving {
    struct job job;
    struct rpc *rpc;
    struct http_exchange *ex;
    const char *source, *destination;
    int error;
};

static void move_answer(struct moving *m)
{
    struct stat st;

    if (m->error == ENOENT)
        rpc_fail(m->rpc, CONNECT_NOT_FOUND, "source file not found: rename %s %s: no such file or directory", m->source,
                 m->destination);
    else if (m->error)
        fail_errno(m->rpc, "renaming", m->source, m->error);
    else if (lstat(m->destination, &st) < 0)
        fail_errno(m->rpc, "getting file info of", m->destination, errno);
    else
        reply_entry(m->rpc, m->destination, &st);
}

static void move_run(struct job *job)
{
    struct moving *m = container_of(job, struct moving, job);

    m->error = rename(m->source, m->destination) < 0 ? errno : 0;
}

static void move_worker_done(struct job *job)
{
    struct moving *m = container_of(job, struct moving, job);
    struct http_exchange *ex = m->ex;

    if (!ex->gone)
        move_answer(m);
    http_unref(ex);
}

static void call_move(struct rpc *rpc, const json_t *request)
{
    const char *source, *destination;
    struct str message;
    struct err err;

    if (!take_path(rpc, request, "source", &source) || !take_path(rpc, request, "destination", &destination))
        return;
    if (!path_make_dirs(rpc->arena, path_parent(rpc->arena, destination), &rpc->user, &message, &err)) {
        if (message.len)
            rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "%.*s", STR_ARG(message));
        else
            fail_errno(rpc, "creating the directory of", destination, err.sys);
        return;
    }
    struct moving *m = ARENA_NEW(rpc->arena, struct moving);
    m->rpc = rpc;
    m->ex = rpc->ex;
    m->source = source;
    m->destination = destination;
    if (is_quick(source) && is_quick(destination)) {
        move_run(&m->job);
        move_answer(m);
        return;
    }
    m->job.run = move_run;
    m->job.done = move_worker_done;
    http_ref(rpc->ex);
    workers_run(rpc->guest->workers, &m->job);
}

/* ---- ListDir ---- */

/*
 * Depth first, a directory before what is in it, names in bytewise order. Directories that links lead to are listed but
 * not entered. The requested one itself may be a link: it is followed, and the entries are named below the link.
 */
struct listing {
    struct job job;
    struct rpc *rpc;
    struct http_exchange *ex; /* referenced until the worker is done with its arena */
    const char *path;
    unsigned depth;
    enum entry_detail detail;
    struct buf body;
    struct json_out out;
    size_t count;
    size_t names_cost; /* of names read and not yet written, on all levels */
    bool is_too_long;
    uint64_t give_up_us; /* on the loop: give up and use a worker then; 0: never */
    bool is_too_slow;
    int error; /* of reading the requested directory; those below may be gone by now */
    struct users *users;
};

struct names {
    char **at;
    size_t count, room, cost;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_free(struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->at[i]);
    free(names->at);
}

static bool is_late(struct listing *l)
{
    l->is_too_slow |= l->give_up_us && clock_mono_us() >= l->give_up_us;
    return l->is_too_slow;
}

/* False if it cannot be read. Sets is_too_long when the listing has too many names, or too long ones. */
static bool read_names(struct listing *l, const char *path, struct names *names)
{
    DIR *dir = opendir(path);
    struct dirent *dirent;

    if (!dir)
        return false;
    while (!l->is_too_long && !is_late(l) && (dirent = readdir(dir))) {
        if (strcmp(dirent->d_name, ".") == 0 || strcmp(dirent->d_name, "..") == 0)
            continue;
        if (names->count == names->room) {
            names->room = names->room ? 2 * names->room : 32;
            names->at = mem_grow(names->at, names->room * sizeof *names->at);
        }
        names->at[names->count++] = mem_copy_text(dirent->d_name);
        names->cost += sizeof *names->at + strlen(dirent->d_name) + 1;
        l->is_too_long =
            l->count + names->count > LIMIT_LIST_ENTRIES || l->names_cost + names->cost > LIMIT_LIST_NAME_BYTES;
    }
    (void)closedir(dir);
    l->names_cost += names->cost;
    if (names->count)
        qsort(names->at, names->count, sizeof *names->at, by_name);
    return true;
}

static void list_below(struct listing *l, const char *path, unsigned depth)
{
    struct names names = { 0 };

    if (!read_names(l, path, &names)) {
        l->error = path == l->path ? errno : 0;
        return;
    }
    for (size_t i = 0; i < names.count && !l->is_too_long && !is_late(l); i++) {
        struct arena scratch; /* freed for each entry: there may be 100,000 */
        struct stat st;
        arena_init(&scratch);
        const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
        const char *child = arena_format(&scratch, "%s%s%s", path, slash, names.at[i]).at;
        if (lstat(child, &st) == 0) {
            entry_write(&l->out, NULL, child, &st, l->detail, l->users, &scratch);
            l->is_too_long = ++l->count > LIMIT_LIST_ENTRIES || l->body.overflowed;
            if (S_ISDIR(st.st_mode) && depth > 1)
                list_below(l, child, depth - 1);
        }
        arena_done(&scratch);
    }
    l->names_cost -= names.cost;
    names_free(&names);
}

static void list_run(struct listing *l)
{
    l->out = json_out_to(&l->body);
    json_out_object(&l->out, NULL);
    json_out_array(&l->out, "entries");
    list_below(l, l->path, l->depth);
    json_out_end(&l->out);
    json_out_end(&l->out);
}

static void list_answer(struct listing *l)
{
    if (l->is_too_long)
        rpc_fail(l->rpc, CONNECT_RESOURCE_EXHAUSTED, "%s has more than %d entries, or their names are too long",
                 l->path, LIMIT_LIST_ENTRIES);
    else if (l->error)
        fail_errno(l->rpc, "listing directory", l->path, l->error);
    else
        rpc_reply(l->rpc, buf_str(&l->body));
    buf_done(&l->body);
}

static void list_on_worker(struct job *job)
{
    struct listing *l = container_of(job, struct listing, job);

    l->users = users_new("/etc"); /* the loop's instance is for the loop's thread */
    list_run(l);
    users_free(l->users);
}

static void list_worker_done(struct job *job)
{
    struct listing *l = container_of(job, struct listing, job);
    struct http_exchange *ex = l->ex;

    if (!ex->gone)
        list_answer(l);
    else
        buf_done(&l->body);
    http_unref(ex);
}

enum {
    QUICK_DIR_BYTES = 64 * 1024, /* about a thousand entries, on file systems where a directory's size grows */
    QUICK_US = 10000,            /* entries may be slow for other reasons: attributes, links */
};

static void call_list_dir(struct rpc *rpc, const json_t *request)
{
    const char *path;
    struct stat st;
    struct err err;
    int64_t depth = 1;

    if (!take_path(rpc, request, "path", &path))
        return;
    if (!json_take_int(request, "depth", JSON_OPTIONAL, 0, UINT32_MAX, &depth, &err)) {
        rpc_fail_err(rpc, &err);
        return;
    }
    if (stat(path, &st) < 0) {
        if (errno == ENOENT)
            rpc_fail(rpc, CONNECT_NOT_FOUND, "path not found: lstat %s: no such file or directory", path);
        else if (errno == ELOOP)
            rpc_fail(rpc, CONNECT_FAILED_PRECONDITION, "cyclic symlink or chain >255 links at %s", path);
        else if (errno == ENOTDIR)
            rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "path is not a directory: %s", path);
        else
            fail_errno(rpc, "listing directory", path, errno);
        return;
    }
    if (!S_ISDIR(st.st_mode)) {
        rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "path is not a directory: %s", path);
        return;
    }
    struct listing *l = ARENA_NEW(rpc->arena, struct listing);
    l->rpc = rpc;
    l->ex = rpc->ex;
    l->path = path;
    l->depth = (unsigned)MIN(MAX(depth, 1), LIMIT_LIST_DEPTH);
    l->detail = detail_for(rpc);
    l->body = buf_make(NULL, LIMIT_LIST_BYTES);
    l->users = rpc->guest->users;
    if (l->depth == 1 && st.st_size <= QUICK_DIR_BYTES) {
        l->give_up_us = clock_mono_us() + QUICK_US;
        list_run(l);
        if (!l->is_too_slow) {
            list_answer(l);
            return;
        }
        buf_done(&l->body);
        l->body = buf_make(NULL, LIMIT_LIST_BYTES);
        l->count = 0;
        l->give_up_us = 0;
        l->is_too_long = l->is_too_slow = false;
    }
    l->job.run = list_on_worker;
    l->job.done = list_worker_done;
    http_ref(rpc->ex);
    workers_run(rpc->guest->workers, &l->job);
}

/* ---- Remove ---- */

struct removal {
    struct job job;
    struct rpc *rpc;
    struct http_exchange *ex;
    const char *path;
    int error; /* errno, or 0 */
};

static void remove_on_worker(struct job *job)
{
    struct removal *r = container_of(job, struct removal, job);
    struct err err;

    if (!remove_tree(AT_FDCWD, r->path, &err))
        r->error = err.sys;
}

static void remove_worker_done(struct job *job)
{
    struct removal *r = container_of(job, struct removal, job);
    struct http_exchange *ex = r->ex;

    if (!ex->gone && r->error)
        fail_errno(r->rpc, "removing", r->path, r->error);
    else if (!ex->gone)
        rpc_reply(r->rpc, STR("{}"));
    http_unref(ex);
}

static void call_remove(struct rpc *rpc, const json_t *request)
{
    const char *path;
    struct stat st;

    if (!take_path(rpc, request, "path", &path))
        return;
    /* Nothing there, a small file, an empty directory: faster than waking a worker. */
    if (lstat(path, &st) < 0) {
        if (errno == ENOENT || errno == ENOTDIR)
            rpc_reply(rpc, STR("{}"));
        else
            fail_errno(rpc, "removing", path, errno);
        return;
    }
    if (is_quick(path)) {
        if ((S_ISDIR(st.st_mode) ? rmdir(path) : unlink(path)) == 0 || errno == ENOENT) {
            rpc_reply(rpc, STR("{}"));
            return;
        }
        if (errno != ENOTEMPTY && errno != EEXIST) {
            fail_errno(rpc, "removing", path, errno);
            return;
        }
    }
    struct removal *r = ARENA_NEW(rpc->arena, struct removal);
    r->rpc = rpc;
    r->ex = rpc->ex;
    r->path = path;
    r->job.run = remove_on_worker;
    r->job.done = remove_worker_done;
    http_ref(rpc->ex);
    workers_run(rpc->guest->workers, &r->job);
}

const struct rpc_method filesystem_stat = { "filesystem.Filesystem/Stat", RPC_UNARY, call_stat, NULL };
const struct rpc_method filesystem_list_dir = { "filesystem.Filesystem/ListDir", RPC_UNARY, call_list_dir, NULL };
const struct rpc_method filesystem_make_dir = { "filesystem.Filesystem/MakeDir", RPC_UNARY, call_make_dir, NULL };
const struct rpc_method filesystem_move = { "filesystem.Filesystem/Move", RPC_UNARY, call_move, NULL };
const struct rpc_method filesystem_remove = { "filesystem.Filesystem/Remove", RPC_UNARY, call_remove, NULL };
