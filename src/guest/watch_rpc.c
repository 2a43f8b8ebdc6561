/*
 * watch_rpc.c - WatchDir streams changes. CreateWatcher, GetWatcherEvents and RemoveWatcher are for clients that poll:
 * the watcher collects changes, and any client that knows its id may fetch them.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"
#include "guest/entry.h"
#include "guest/filesystem.h"
#include "guest/path.h"
#include "guest/watch.h"

/* ---- shared ---- */

static bool is_network(const char *path)
{
    static const unsigned magics[] = { 0x6969 /* NFS */, 0xff534d42 /* CIFS */, 0x517b /* SMB */, 0xfe534d42 /* SMB2 */,
                                       0x65735546 /* FUSE */ };
    struct statfs fs;

    if (statfs(path, &fs) < 0)
        return false;
    for (size_t i = 0; i < COUNT_OF(magics); i++)
        if ((unsigned)fs.f_type == magics[i])
            return true;
    return false;
}

static bool take_flag(const json_t *request, const char *camel, const char *snake, bool *out)
{
    const json_t *value = rpc_field(request, camel, snake);

    if (value && !json_is_boolean(value))
        return false;
    *out = json_is_true(value);
    return true;
}

struct watch_request {
    const char *path;
    bool is_recursive, includes_entry;
};

/* False if it was answered. */
static bool take_request(struct rpc *rpc, const json_t *request, struct watch_request *out)
{
    struct str path = STR("");
    bool allows_network = false;
    struct stat st;
    struct err err;

    if (!take_flag(request, "recursive", "recursive", &out->is_recursive) ||
        !take_flag(request, "includeEntry", "include_entry", &out->includes_entry) ||
        !take_flag(request, "allowNetworkMounts", "allow_network_mounts", &allows_network)) {
        rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "the options of a watch must be true or false");
        return false;
    }
    if (!json_take_str(request, "path", JSON_OPTIONAL, &path, &err) ||
        !path_resolve(rpc->arena, path, &rpc->user, rpc->guest->default_workdir, &out->path, &err)) {
        rpc_fail_err(rpc, &err);
        return false;
    }
    if (stat(out->path, &st) < 0) {
        rpc_fail(rpc, errno == ENOENT ? CONNECT_NOT_FOUND : CONNECT_INTERNAL,
                 errno == ENOENT ? "path %s not found: no such file or directory" : "error statting path %s",
                 out->path);
        return false;
    }
    if (!S_ISDIR(st.st_mode)) {
        rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "path %s not a directory", out->path);
        return false;
    }
    if (!allows_network && is_network(out->path)) {
        rpc_fail(rpc, CONNECT_INVALID_ARGUMENT, "cannot watch path on network filesystem: %s", out->path);
        return false;
    }
    return true;
}

/* {"name":…,"type":…,"entry":…}: one FilesystemEvent. */
static void write_event(struct json_out *out, const char *key, struct guest *guest, enum watch_event_type type,
                        const char *name, const char *path, bool includes_entry)
{
    static const char *const names[] = {
        [WATCH_EVENT_CREATE] = "EVENT_TYPE_CREATE", [WATCH_EVENT_WRITE] = "EVENT_TYPE_WRITE",
        [WATCH_EVENT_REMOVE] = "EVENT_TYPE_REMOVE", [WATCH_EVENT_RENAME] = "EVENT_TYPE_RENAME",
        [WATCH_EVENT_CHMOD] = "EVENT_TYPE_CHMOD",
    };
    bool is_there = type == WATCH_EVENT_CREATE || type == WATCH_EVENT_WRITE || type == WATCH_EVENT_CHMOD;
    struct stat st;

    json_out_object(out, key);
    json_out_str(out, "name", str_from(name));
    json_out_str(out, "type", str_from(names[type]));
    if (includes_entry && is_there && lstat(path, &st) == 0) {
        struct arena scratch;
        arena_init(&scratch);
        entry_write(out, "entry", path, &st, ENTRY_FULL, guest->users, &scratch);
        arena_done(&scratch);
    }
    json_out_end(out);
}

/* ---- WatchDir ---- */

struct watch_stream {
    struct rpc *rpc;
    struct dir_watch *watch;
    bool includes_entry;
};

static void on_stream_event(struct dir_watch *watch, enum watch_event_type type, const char *name, const char *path)
{
    struct watch_stream *s = dir_watch_owner(watch);
    auto_buf struct buf event = buf_make(NULL, LIMIT_RPC_BYTES);
    struct json_out out = json_out_to(&event);

    json_out_object(&out, NULL);
    write_event(&out, "filesystem", s->rpc->guest, type, name, path, s->includes_entry);
    json_out_end(&out);
    rpc_send(s->rpc, buf_str(&event));
    if (rpc_is_full(s->rpc))
        dir_watch_pause(watch, true);
}

static void on_stream_failed(struct dir_watch *watch, const struct err *err)
{
    struct watch_stream *s = dir_watch_owner(watch);

    rpc_fail_err(s->rpc, err);
}

static void on_stream_drained(struct rpc *rpc)
{
    struct watch_stream *s = rpc->owner;

    dir_watch_pause(s->watch, false);
}

static void on_stream_gone(struct rpc *rpc)
{
    struct watch_stream *s = rpc->owner;

    dir_watch_free(take_ptr(&s->watch));
    rpc->guest->watch_streams--;
}

static void call_watch_dir(struct rpc *rpc, const json_t *request)
{
    struct watch_stream *s = ARENA_NEW(rpc->arena, struct watch_stream);
    struct watch_request want;
    struct err err;

    if (!take_request(rpc, request, &want))
        return;
    /* Streams must not use up all connections. CreateWatcher needs none. */
    if (rpc->guest->watch_streams >= LIMIT_WATCH_STREAMS) {
        rpc_fail(rpc, CONNECT_RESOURCE_EXHAUSTED, "more than %d directories are watched by streams",
                 LIMIT_WATCH_STREAMS);
        return;
    }
    s->rpc = rpc;
    s->includes_entry = want.includes_entry;
    s->watch = dir_watch_new(rpc->guest->watchers,
                             &(struct dir_watch_want){ .path = want.path,
                                                       .is_recursive = want.is_recursive,
                                                       .on_event = on_stream_event,
                                                       .on_failed = on_stream_failed,
                                                       .owner = s },
                             &err);
    if (!s->watch) {
        rpc_fail_err(rpc, &err);
        return;
    }
    rpc->guest->watch_streams++;
    rpc->owner = s;
    rpc->on_drained = on_stream_drained;
    rpc->on_gone = on_stream_gone;
    rpc_send(rpc, STR("{\"start\":{}}"));
    rpc_keep_alive(rpc, STR("{\"keepalive\":{}}"));
}

/* ---- CreateWatcher, GetWatcherEvents, RemoveWatcher ---- */

enum { WATCHER_ID_BYTES = 22 }; /* "w", 20 characters, zero */

struct watcher {
    struct guest *guest;
    struct dir_watch *watch;
    bool includes_entry;
    char id[WATCHER_ID_BYTES];
    struct buf events; /* JSON, separated by commas */
    size_t count;
    struct err failed; /* kind ERR_NONE: not */
};

static void forget_events(struct watcher *w)
{
    w->guest->event_bytes -= w->events.len;
    buf_done(&w->events);
    w->count = 0;
}

static void on_watcher_failed(struct dir_watch *watch, const struct err *err)
{
    struct watcher *w = dir_watch_owner(watch);

    w->failed = *err;
    forget_events(w);
}

/* The watcher with the most events that were not fetched. */
static struct watcher *greediest(const struct guest *guest)
{
    struct watcher *most = NULL;

    for (struct dir_watch *watch = NULL; (watch = dir_watch_next(guest->watchers, watch));) {
        struct watcher *w = dir_watch_owner(watch);
        if (!most || w->events.len > most->events.len)
            most = w;
    }
    return most;
}

static void on_watcher_event(struct dir_watch *watch, enum watch_event_type type, const char *name, const char *path)
{
    struct watcher *w = dir_watch_owner(watch);
    size_t len = w->events.len;
    struct err err;

    if (w->count)
        buf_add_char(&w->events, ',');
    struct json_out out = json_out_to(&w->events);
    write_event(&out, NULL, w->guest, type, name, path, w->includes_entry);
    w->guest->event_bytes += w->events.len - len;
    if (++w->count > LIMIT_WATCH_EVENTS) {
        (void)err_set(&err, ERR_LIMIT, "watcher error: more than %d events were not fetched", LIMIT_WATCH_EVENTS);
    } else if (w->events.overflowed || w->guest->event_bytes > LIMIT_WATCH_KEPT_BYTES) {
        (void)err_set(&err, ERR_LIMIT, "watcher error: events of more than %d bytes, of all watchers, were not fetched",
                      LIMIT_WATCH_KEPT_BYTES);
        w = greediest(w->guest);
    } else {
        return;
    }
    dir_watch_stop(w->watch);
    on_watcher_failed(w->watch, &err);
}

static void call_create_watcher(struct rpc *rpc, const json_t *request)
{
    struct watch_request want;
    struct err err;

    if (!take_request(rpc, request, &want))
        return;
    struct watcher *w = NEW(struct watcher);
    w->guest = rpc->guest;
    w->includes_entry = want.includes_entry;
    w->events = buf_make(NULL, LIMIT_WATCH_KEPT_BYTES);
    w->id[0] = 'w';
    random_id(w->id + 1, sizeof w->id - 2);
    w->watch = dir_watch_new(rpc->guest->watchers,
                             &(struct dir_watch_want){ .path = want.path,
                                                       .is_recursive = want.is_recursive,
                                                       .on_event = on_watcher_event,
                                                       .on_failed = on_watcher_failed,
                                                       .owner = w },
                             &err);
    if (!w->watch) {
        free(w);
        rpc_fail_err(rpc, &err);
        return;
    }
    dir_watch_set_id(w->watch, w->id);
    struct str reply = arena_format(rpc->arena, "{\"watcherId\":\"%s\"}", w->id);
    rpc_reply(rpc, reply);
}

/* The watcher that a request names, or NULL and it was answered. */
static struct watcher *take_watcher(struct rpc *rpc, const json_t *request)
{
    const json_t *id = rpc_field(request, "watcherId", "watcher_id");
    struct str name = json_is_string(id) ? json_str(id) : STR("");
    struct dir_watch *found = dir_watch_by_id(rpc->guest->watchers, name);

    if (!found)
        rpc_fail(rpc, CONNECT_NOT_FOUND, "watcher with id %.*s not found", (int)MIN(name.len, 100), name.at);
    return found ? dir_watch_owner(found) : NULL;
}

static void call_get_watcher_events(struct rpc *rpc, const json_t *request)
{
    struct watcher *w = take_watcher(rpc, request);

    if (!w)
        return;
    watchers_look(rpc->guest->watchers);
    if (w->failed.kind != ERR_NONE) {
        rpc_fail_err(rpc, &w->failed);
        return;
    }
    struct buf body = buf_make(rpc->arena, w->events.len + 64);
    buf_add(&body, STR("{\"events\":["));
    buf_add(&body, buf_str(&w->events));
    buf_add(&body, STR("]}"));
    forget_events(w);
    rpc_reply(rpc, buf_str(&body));
}

static void call_remove_watcher(struct rpc *rpc, const json_t *request)
{
    struct watcher *w = take_watcher(rpc, request);

    if (!w)
        return;
    dir_watch_free(w->watch);
    forget_events(w);
    free(w);
    rpc_reply(rpc, STR("{}"));
}

const struct rpc_method filesystem_watch_dir = { "filesystem.Filesystem/WatchDir", RPC_SERVER_STREAM, call_watch_dir,
                                                 NULL };
const struct rpc_method filesystem_create_watcher = { "filesystem.Filesystem/CreateWatcher", RPC_UNARY,
                                                      call_create_watcher, NULL };
const struct rpc_method filesystem_get_watcher_events = { "filesystem.Filesystem/GetWatcherEvents", RPC_UNARY,
                                                          call_get_watcher_events, NULL };
const struct rpc_method filesystem_remove_watcher = { "filesystem.Filesystem/RemoveWatcher", RPC_UNARY,
                                                      call_remove_watcher, NULL };
