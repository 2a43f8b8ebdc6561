/*
 * puller_main() - gets images from registries, each in a child of its own (forker.h).
 *   holds     the directory of downloads, what the operator says about registries, certificates that the host trusts, name
 *             servers to ask; a channel to front
 *   must not  open a file elsewhere, but layouts and archives that the operator names; reach an address that is not public
 *             unless the operator names its host; keep a login
 *
 * How it works: front asks for a child and sends it one request (registry/message.h), perhaps with an archive that a client
 * has uploaded: the child reads it, front never does. The child does all of registry/fetch.h, with a few threads (crew.h), of
 * which each downloads a layer. Requests leave by call_out.h. When front closes the connection, nobody waits any more: the
 * child ends, and what it has
 * downloaded so far stays for the next one.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/call_out.h"
#include "daemon/crew.h"
#include "daemon/forker.h"
#include "daemon/roles.h"
#include "daemon/settings.h"
#include "privsep/frame.h"
#include "privsep/role.h"
#include "registry/fetch.h"

#ifndef PULLER_IDLE_MS /* a test has less time… */
#define PULLER_IDLE_MS LIMIT_REGISTRY_IDLE_MS
#endif
#ifndef PULLER_HASTE /* …and less patience */
#define PULLER_HASTE 1
#endif

enum {
    READ_MS = 30000,      /* for front's request, and for its answer about layers */
    CONNECT_MS = 15000,   /* for one address of a registry */
    DOCUMENT_MS = 120000, /* for an answer that is not a layer */
    LOOK_MS = 200,        /* does front still wait? */
    /* So many descriptors of all children may be on their way to front, which takes them between two layers that it unpacks. */
    CHILD_FILES = (LIMIT_PULLS + 1) * LIMIT_IMAGE_LAYERS,
};

struct puller {
    struct puller_settings settings;
    struct egress_settings egress;
    char *roots; /* certificates, in PEM */
    size_t roots_len;
    struct buf resolv_conf;
    int blobs_fd;
    struct crew *crew; /* in a child */
};

/* One pull, in the child. */
struct pull {
    const struct puller *puller;
    struct registry_options options;
    struct net_range all; /* addresses */
    int front_fd;
    uint64_t until_ms;
    pthread_mutex_t lock; /* for writing to front */
    atomic_bool is_stopped;
};

/* A thread's. */
struct caller {
    struct pull *pull;
    struct call_out *out;
};

/* ---- requests ---- */

/* A registry that the operator names may have any address that is not denied. */
static struct call_rights rights(void *context, struct str host, uint16_t port)
{
    const struct pull *pull = context;
    enum registry_standing standing = registry_standing(&pull->options, host, port);

    if (standing == REGISTRY_STRANGER)
        return (struct call_rights){ 0 };
    return (struct call_rights){ .allow_count = 1, .allow = &pull->all, .may_http = standing == REGISTRY_INSECURE };
}

/* Has front closed the connection, or has another thread failed? */
static bool is_abandoned(struct pull *pull)
{
    char byte;

    return atomic_load(&pull->is_stopped) || recv(pull->front_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

struct asking {
    struct pull *pull;
    const struct web_want *want;
    struct arena *arena;
    struct web_answer *answer;
    struct buf body;
    bool has_failed; /* take() */
    struct err *err;
};

static bool is_cancelled(void *context)
{
    return is_abandoned(((const struct asking *)context)->pull);
}

static void take_status(struct web_answer *answer, struct str line)
{
    struct str word;
    uint64_t status;

    *answer = (struct web_answer){ 0 }; /* what came before was an interim answer */
    if (str_cut(&line, ' ', &word) && str_cut(&line, ' ', &word) && str_to_u64(word, 999, &status))
        answer->status = (uint32_t)status;
}

static void on_header(void *context, struct str line)
{
    struct asking *asking = context;
    struct web_answer *answer = asking->answer;
    const struct {
        struct str name;
        struct str *field;
    } wanted[] = { { STR("content-type"), &answer->content_type },
                   { STR("docker-content-digest"), &answer->digest },
                   { STR("location"), &answer->location },
                   { STR("retry-after"), &answer->retry_after },
                   { STR("content-range"), &answer->content_range } };
    struct str name, rest = line;

    if (str_starts(line, STR("HTTP/"))) {
        take_status(answer, line);
        return;
    }
    if (!str_has_char(line, ':') || !str_cut(&rest, ':', &name) || rest.len > LIMIT_REGISTRY_HEADER_BYTES)
        return;
    rest = str_trim(rest);
    for (size_t i = 0; i < COUNT_OF(wanted); i++)
        if (str_eq_nocase(name, wanted[i].name) && wanted[i].field->len == 0)
            *wanted[i].field = arena_copy(asking->arena, rest);
    if (str_eq_nocase(name, STR("www-authenticate")) && answer->challenge_count < CHALLENGES_MOST)
        answer->challenges[answer->challenge_count++] = arena_copy(asking->arena, rest);
}

static bool is_success(const struct web_answer *answer)
{
    return answer->status == 200 || answer->status == 206;
}

static bool on_body(void *context, struct str piece)
{
    struct asking *asking = context;
    const struct web_want *want = asking->want;

    if (is_success(asking->answer) && want->take) {
        asking->has_failed = !want->take(want->take_context, asking->answer, piece, asking->err);
        return !asking->has_failed;
    }
    /* Of an error, the first bytes are enough. */
    if (!is_success(asking->answer) && asking->body.len + piece.len > LIMIT_REGISTRY_ERROR_BYTES)
        return false;
    buf_add(&asking->body, piece);
    return !asking->body.overflowed;
}

static struct str *make_headers(const struct web_want *want, struct arena *arena)
{
    struct str *lines = ARENA_ARRAY(arena, struct str, want->header_count);

    for (uint32_t i = 0; i < want->header_count; i++)
        lines[i] = arena_format(arena, "%s: %.*s", want->headers[i].name, STR_ARG(want->headers[i].value));
    return lines;
}

/* A line end in a header would begin another one. */
static bool headers_are_lines(const struct web_want *want)
{
    for (uint32_t i = 0; i < want->header_count; i++)
        for (size_t at = 0; at < want->headers[i].value.len; at++)
            if ((unsigned char)want->headers[i].value.at[at] < ' ')
                return false;
    return true;
}

static bool web_send(void *context, const struct web_want *want, struct arena *arena, struct web_answer *out,
                     struct err *err)
{
    const struct caller *caller = context;
    struct pull *pull = caller->pull;
    auto_buf struct buf body = buf_make(NULL, LIMIT_REGISTRY_JSON_BYTES);
    struct asking asking = { .pull = pull, .want = want, .arena = arena, .answer = out, .body = body, .err = err };
    uint64_t document_ms = clock_mono_ms() + DOCUMENT_MS;
    uint32_t status;

    if (!headers_are_lines(want))
        return err_set(err, ERR_INVALID, "the registry wants a header that cannot be sent");
    bool fine = call_out_send(
        caller->out,
        &(struct call_request){ .method = want->method,
                                .url = want->url,
                                .header_count = want->header_count,
                                .headers = make_headers(want, arena),
                                .body = want->body,
                                .until_ms = want->take ? pull->until_ms : MIN(document_ms, pull->until_ms),
                                .idle_ms = PULLER_IDLE_MS,
                                .on_header = on_header,
                                .on_body = on_body,
                                .is_cancelled = is_cancelled,
                                .context = &asking },
        arena, &status, err);
    body = asking.body; /* freed on the way out */
    if (asking.has_failed)
        return false;
    if (!fine && err->sys == EKEYREJECTED)
        return err_set(err, ERR_DENIED, "the registry's certificate is not one that this machine trusts");
    if (!fine)
        return is_abandoned(pull) ? err_set(err, ERR_CONFLICT, "the pull was cancelled") : false;
    if (body.overflowed)
        return err_set(err, ERR_LIMIT, "the registry's answer has more than %d bytes", LIMIT_REGISTRY_JSON_BYTES);
    out->status = status;
    out->body = arena_copy(arena, buf_str(&body));
    return true;
}

static bool web_wait(void *context, uint64_t ms, struct err *err)
{
    struct pull *pull = ((const struct caller *)context)->pull;
    uint64_t now_ms = clock_mono_ms(), until_ms = now_ms + ms / PULLER_HASTE;

    if (until_ms > pull->until_ms)
        return err_set(err, ERR_TIMEOUT, "the image did not arrive in time");
    for (;; now_ms = clock_mono_ms()) {
        struct pollfd front = { .fd = pull->front_fd, .events = POLLIN };
        if (is_abandoned(pull))
            return err_set(err, ERR_CONFLICT, "the pull was cancelled");
        if (now_ms >= until_ms)
            return true;
        (void)poll(&front, 1, (int)MIN(until_ms - now_ms, (uint64_t)LOOK_MS));
    }
}

/* ---- front ---- */

/* One message at a time. Front may be busy with a layer; when it ends, so does the connection. */
static bool tell(struct pull *pull, const struct buf *message, int fd, struct err *err)
{
    uint64_t now_ms = clock_mono_ms();

    pthread_mutex_lock(&pull->lock);
    bool fine = frame_write_fd(pull->front_fd, buf_str(message), fd,
                               pull->until_ms > now_ms ? pull->until_ms - now_ms : 1, err);
    pthread_mutex_unlock(&pull->lock);
    return fine;
}

static void say(void *context, struct str line)
{
    struct pull *pull = ((const struct caller *)context)->pull;
    auto_buf struct buf out = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);
    struct err ignored;

    pull_said_pack(&out, line);
    (void)!tell(pull, &out, -1, &ignored); /* the next message fails, too */
}

static bool ask_chains(void *context, const struct pull_layer *layers, uint32_t count, bool *out_have, struct err *err)
{
    struct pull *pull = context;
    auto_buf struct buf out = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);
    auto_free char *bytes = NULL;
    size_t len;

    pull_chains_pack(&out, layers, count);
    return tell(pull, &out, -1, err) &&
           frame_read(pull->front_fd, LIMIT_PULL_MESSAGE_BYTES, READ_MS, &bytes, &len, err) &&
           pull_have_unpack(str_of(bytes, len), out_have, count, err);
}

static bool give_layer(void *context, uint32_t number, int fd, struct err *err)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);

    pull_layer_pack(&out, number);
    return tell(context, &out, fd, err);
}

/* ---- the child ---- */

static void together(void *context, void (*work)(void *work_context, uint32_t thread), void *work_context)
{
    const struct pull *pull = context;

    crew_work(pull->puller->crew, work, work_context);
}

static void stop(void *context)
{
    struct pull *pull = context;

    atomic_store(&pull->is_stopped, true);
}

static struct call_out *make_call_out(struct pull *pull)
{
    const struct puller *puller = pull->puller;

    return call_out_new(&(struct call_out_config){ .subject = "registry",
                                                   .callers = "pulls",
                                                   .roots = str_of(puller->roots, puller->roots_len),
                                                   .resolv_conf = buf_str(&puller->resolv_conf),
                                                   .deny_count = puller->egress.deny_count,
                                                   .deny = puller->egress.deny,
                                                   .connect_ms = CONNECT_MS,
                                                   .rights = rights,
                                                   .context = pull });
}

static bool run(struct pull *pull, struct str request, int archive_fd, struct arena *arena, struct pull_done *out,
                struct err *err)
{
    struct caller callers[LIMIT_PULL_LAYERS];
    struct web webs[LIMIT_PULL_LAYERS];
    struct pull_ask ask;

    if (!pull_ask_unpack(request, &ask, err))
        return false;
    if (ask.is_archive && archive_fd < 0)
        return err_set(err, ERR_UNAVAILABLE,
                       "the archive did not arrive: raise the server's limit of open files (LimitNOFILE, ulimit -n)");
    const struct blobs blobs = { .dir_fd = pull->puller->blobs_fd, .owner = blobs_owner(ask.team_id) };
    for (uint32_t i = 0; i < LIMIT_PULL_LAYERS; i++) {
        callers[i] = (struct caller){ .pull = pull, .out = make_call_out(pull) };
        webs[i] = (struct web){ .send = web_send, .wait = web_wait, .said = say, .context = &callers[i] };
    }
    bool fine = image_fetch(&(struct fetch_config){ .options = &pull->options,
                                                    .ask = &ask,
                                                    .archive_fd = archive_fd,
                                                    .web = webs,
                                                    .blobs = &blobs,
                                                    .arena = arena,
                                                    .chains = ask_chains,
                                                    .layer = give_layer,
                                                    .thread_count = LIMIT_PULL_LAYERS,
                                                    .together = together,
                                                    .stop = stop,
                                                    .context = pull },
                            out, err);
    for (uint32_t i = 0; i < LIMIT_PULL_LAYERS; i++)
        call_out_free(callers[i].out);
    return fine;
}

static bool serve_stock(const struct puller *puller, bool removes, int fd, struct err *err)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);
    const struct blobs blobs = { .dir_fd = puller->blobs_fd };
    uint64_t files, bytes;
    struct err why;

    if (blobs_stock(&blobs, removes, &files, &bytes, &why))
        pull_stocked_pack(&out, files, bytes);
    else
        pull_failed_pack(&out, &why);
    return frame_write(fd, buf_str(&out), READ_MS, err);
}

static bool serve(void *context, int fd, struct err *err)
{
    const struct puller *puller = context;
    auto_buf struct buf out = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);
    auto_free char *request = NULL;
    auto_close int archive_fd = -1;
    struct pull pull = { .puller = puller,
                         .options = puller_settings_options(&puller->settings),
                         .front_fd = fd,
                         .until_ms = clock_mono_ms() + LIMIT_PULL_MS,
                         .lock = PTHREAD_MUTEX_INITIALIZER };
    struct pull_done done;
    struct arena arena;
    struct err why;
    bool removes;
    size_t len;

    if (!frame_read_fd(fd, LIMIT_PULL_MESSAGE_BYTES, READ_MS, &request, &len, &archive_fd, err))
        return false;
    if (pull_stock_unpack(str_of(request, len), &removes, &why))
        return serve_stock(puller, removes, fd, err);
    if (!net_range_parse(STR("0.0.0.0/0"), &pull.all)) /* those of IPv6, too */
        return err_set(err, ERR_INTERNAL, "no range has all addresses");
    arena_init(&arena);
    if (run(&pull, str_of(request, len), archive_fd, &arena, &done, &why))
        pull_done_pack(&out, &done);
    else
        pull_failed_pack(&out, &why);
    arena_done(&arena);
    explicit_bzero(request, len); /* a password may be in it */
    return tell(&pull, &out, -1, err);
}

/* The threads of a child, before it is confined. */
static bool prepare(void *context, struct err *err)
{
    struct puller *puller = context;

    puller->crew = crew_new(LIMIT_PULL_LAYERS - 1, err);
    return puller->crew != NULL;
}

/* ---- the role ---- */

void puller_prepare(void)
{
    call_out_prepare();
}

/* The layouts and archives of --image. */
uint32_t puller_readable(const struct role_row *self, int fds[ROLE_FDS_MAX])
{
    auto_free struct puller_settings *settings = NEW(struct puller_settings);
    char path[PATH_MAX];
    uint32_t count = 0;
    int settings_fd = role_fd(self, GRANT_PULLER);
    struct err err;

    if (!puller_settings_read(settings_fd, settings, &err) || lseek(settings_fd, 0, SEEK_SET) < 0)
        return 0; /* role_open() says so */
    const struct registry_options options = puller_settings_options(settings);
    for (uint32_t i = 0; image_source_path(&options, i, path); i++) {
        if (count == ROLE_FDS_MAX) {
            log_warn("--image names more than %d layouts and archives: %s and those after it cannot be read",
                     ROLE_FDS_MAX, path);
            break;
        }
        fds[count] = open(path, O_PATH | O_CLOEXEC);
        if (fds[count] >= 0)
            count++;
        else
            log_warn("--image names %s, which cannot be opened: %m", path);
    }
    return count;
}

static bool on_keeper_event(void *context, enum message_type type, struct str payload, struct err *err)
{
    struct puller *puller = context;

    if (type != MESSAGE_RESOLVERS)
        return err_set(err, ERR_INVALID, "malformed message: %s is not for puller", message_type_name[type]);
    if (puller->egress.resolver_count)
        return true; /* --dns wins */
    buf_clear(&puller->resolv_conf);
    buf_add(&puller->resolv_conf, payload);
    return true;
}

static bool role_open(const struct role_row *self, struct puller *puller, struct err *err)
{
    auto_close int settings_fd = role_fd(self, GRANT_PULLER);
    auto_close int egress_fd = role_fd(self, GRANT_EGRESS);
    auto_close int roots_fd = role_fd(self, GRANT_ROOTS);

    puller->blobs_fd = role_fd(self, GRANT_BLOBS);
    puller->resolv_conf = buf_make(NULL, LIMIT_RESOLV_CONF_BYTES);
    if (!puller_settings_read(settings_fd, &puller->settings, err) ||
        !egress_settings_read(egress_fd, &puller->egress, err) ||
        !fd_read_all(roots_fd, LIMIT_ROOTS_BYTES, &puller->roots, &puller->roots_len, err))
        return false;
    egress_settings_resolvers(&puller->egress, &puller->resolv_conf);
    return true;
}

/* What a child does with files: Landlock keeps it in its directory. */
#define FILE_CALLS                                                                                                   \
    { "openat", "downloads, layouts, archives" }, { "openat2", "the same" }, { "fstat", "how large is it?" },        \
        { "newfstatat", "the same" }, { "pread64", "checksums" }, { "pwrite64", "downloads" },                       \
        { "ftruncate", "downloads that begin anew" }, { "unlinkat", "what is old" },                                 \
        { "renameat", "downloads that are whole" }, { "renameat2", "the same, by another libc" },                    \
        { "utimensat", "used just now" }, { "flock", "one download at a time" }, { "getdents64", "what is there?" }, \
        { "fstatfs", "is there room?" },                                                                             \
    {                                                                                                                \
        "lseek", "whole files"                                                                                       \
    }

static const struct confine_rule child_calls[] = {
    FORKER_CHILD_CALLS,
    CALL_OUT_CALLS,
    FILE_CALLS,
    { NULL },
};

/* Every system call of the parent, and those of its children. */
const struct confine_rule puller_calls[] = {
    FORKER_CHILD_CALLS,
    FORKER_PARENT_CALLS,
    FILE_CALLS,
    { "sched_getaffinity", "new threads of children, with the sanitizers of test builds" },
    { "socket", "children", .first = AF_INET },
    { "socket", "children", .first = AF_INET6 },
    { "connect", "children" },
    { "bind", "children" },
    { "readv", "children" },
    { "writev", "children" },
    { "shutdown", "children" },
    { "getsockname", "children" },
    { "getpeername", "children" },
    { "getuid", "libraries" },
    { "geteuid", "libraries" },
    { "getgid", "libraries" },
    { "getegid", "libraries" },
    { NULL },
};

int puller_main(const struct role_row *self)
{
    auto_free struct puller *puller = NEW(struct puller);
    struct err err;
    int code = 1;

    if (role_open(self, puller, &err))
        code = forker_run(&(struct forker_config){
            .what = "pull",
            .message = MESSAGE_PULL,
            .children_most = LIMIT_PULLS,
            .seconds = (LIMIT_PULL_MS + READ_MS) / 1000,
            .keep_fds = 1, /* GRANT_BLOBS */
            .limits = { .memory_bytes = LIMIT_PULL_MEMORY_BYTES, .cpu_s = LIMIT_PULL_CPU_S, .files = CHILD_FILES },
            .calls = child_calls,
            .prepare = prepare,
            .serve = serve,
            .keeper_event = on_keeper_event,
            .context = puller,
        });
    else
        log_error("cannot start: %s", err_text(&err));
    buf_done(&puller->resolv_conf);
    free(puller->roots);
    return code;
}
