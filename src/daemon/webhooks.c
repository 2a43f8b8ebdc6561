/*
 * webhooks_main() - calls the webhooks that people have registered, each in a child of its own (forker.h).
 *   holds     the operator's address ranges, certificates that the host trusts, name servers to ask; a channel to front
 *   must not  open a file, accept a connection, reach an address that is not public unless the operator allows it
 *
 * How it works: call_out.h has the rules. The answer's status is the result; its body is read up to a limit and dropped.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/call_out.h"
#include "daemon/forker.h"
#include "daemon/roles.h"
#include "daemon/settings.h"
#include "mail/hook.h"
#include "privsep/frame.h"
#include "privsep/role.h"

#ifndef WEBHOOKS_MS /* a test has less time */
#define WEBHOOKS_MS LIMIT_HOOK_MS
#endif

enum {
    READ_MS = 5000, /* for front's request */
    CHILD_FILES = 64,
};

struct webhooks {
    struct egress_settings settings;
    char *roots; /* certificates, in PEM */
    size_t roots_len;
    struct buf resolv_conf;
};

/* ---- one call, in the child ---- */

struct call {
    const struct webhooks *webhooks;
    size_t answer_bytes;
};

/* --webhook-allow: also by http. */
static struct call_rights rights(void *context, struct str host, uint16_t port)
{
    const struct call *call = context;
    const struct egress_settings *settings = &call->webhooks->settings;

    (void)host;
    (void)port;
    return (struct call_rights){ .allow_count = settings->hook_allow_count,
                                 .allow = settings->hook_allow,
                                 .may_http = true };
}

static bool drop_body(void *context, struct str piece)
{
    struct call *call = context;

    call->answer_bytes += piece.len;
    return call->answer_bytes <= LIMIT_HOOK_ANSWER_BYTES;
}

static bool post(struct call_out *out, const struct mail_hook *hook, struct call *call, uint64_t until_ms,
                 struct arena *arena, uint32_t *out_status, struct err *err)
{
    struct str *headers = ARENA_ARRAY(arena, struct str, hook->header_count);

    for (uint32_t i = 0; i < hook->header_count; i++)
        headers[i] = arena_format(arena, "%.*s: %.*s", STR_ARG(hook->headers[i].key), STR_ARG(hook->headers[i].value));
    return call_out_send(out,
                         &(struct call_request){ .method = "POST",
                                                 .url = hook->url,
                                                 .header_count = hook->header_count,
                                                 .headers = headers,
                                                 .body = hook->body,
                                                 .until_ms = until_ms,
                                                 .on_body = drop_body,
                                                 .context = call },
                         arena, out_status, err);
}

static bool run(const struct webhooks *webhooks, const struct mail_hook *hook, struct arena *arena,
                uint32_t *out_status, struct err *err)
{
    struct call call = { .webhooks = webhooks };
    struct call_out *out =
        call_out_new(&(struct call_out_config){ .subject = "webhook",
                                                .callers = "webhooks",
                                                .roots = str_of(webhooks->roots, webhooks->roots_len),
                                                .resolv_conf = buf_str(&webhooks->resolv_conf),
                                                .deny_count = webhooks->settings.deny_count,
                                                .deny = webhooks->settings.deny,
                                                .rights = rights,
                                                .context = &call });
    uint64_t until_ms = clock_mono_ms() + (hook->only_check ? MIN(WEBHOOKS_MS, LIMIT_HOOK_CHECK_MS) : WEBHOOKS_MS);

    *out_status = 0;
    bool fine = hook->only_check ? call_out_check(out, hook->url, until_ms, arena, err)
                                 : post(out, hook, &call, until_ms, arena, out_status, err);
    call_out_free(out);
    return fine;
}

/* ---- the child ---- */

static void answer(const struct webhooks *webhooks, struct str request, struct arena *arena, struct buf *out)
{
    struct mail_hook hook;
    uint32_t status;
    struct err why;

    bool fine = mail_hook_unpack(request, arena, &hook, &why) && run(webhooks, &hook, arena, &status, &why);
    pack_bool(out, fine);
    if (fine)
        pack_u32(out, status);
    else
        message_pack_err(out, &why);
}

static bool serve(void *context, int fd, struct err *err)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_HOOK_BYTES);
    auto_free char *request = NULL;
    struct arena arena;
    size_t len;

    if (!frame_read(fd, LIMIT_HOOK_BYTES, READ_MS, &request, &len, err))
        return false;
    arena_init(&arena);
    answer(context, str_of(request, len), &arena, &out);
    arena_done(&arena);
    return frame_write(fd, buf_str(&out), READ_MS, err);
}

/* ---- the role ---- */

void webhooks_prepare(void)
{
    call_out_prepare();
}

static bool on_keeper_event(void *context, enum message_type type, struct str payload, struct err *err)
{
    struct webhooks *webhooks = context;

    if (type != MESSAGE_RESOLVERS)
        return err_set(err, ERR_INVALID, "malformed message: %s is not for webhooks", message_type_name[type]);
    if (webhooks->settings.resolver_count)
        return true; /* --dns wins */
    buf_clear(&webhooks->resolv_conf);
    buf_add(&webhooks->resolv_conf, payload);
    return true;
}

static bool role_open(const struct role_row *self, struct webhooks *webhooks, struct err *err)
{
    auto_close int settings_fd = role_fd(self, GRANT_EGRESS);
    auto_close int roots_fd = role_fd(self, GRANT_ROOTS);

    webhooks->resolv_conf = buf_make(NULL, LIMIT_RESOLV_CONF_BYTES);
    if (!egress_settings_read(settings_fd, &webhooks->settings, err) ||
        !fd_read_all(roots_fd, LIMIT_ROOTS_BYTES, &webhooks->roots, &webhooks->roots_len, err))
        return false;
    egress_settings_resolvers(&webhooks->settings, &webhooks->resolv_conf);
    return true;
}

/* Every system call of a child: the composer's, and sockets to the outside. It opens no file. */
static const struct confine_rule child_calls[] = {
    FORKER_CHILD_CALLS,
    CALL_OUT_CALLS,
    { NULL },
};

/* Every system call of the parent, and those of its children. */
const struct confine_rule webhooks_calls[] = {
    FORKER_CHILD_CALLS,
    FORKER_PARENT_CALLS,
    { "socket", "children", .first = AF_INET },
    { "socket", "children", .first = AF_INET6 },
    { "connect", "children" },
    { "bind", "children" },
    { "readv", "children" },
    { "writev", "children" },
    { "shutdown", "children" },
    { "getsockname", "children" },
    { "getpeername", "children" },
    { "lseek", "settings" },
    { "fstat", "settings" },
    { "newfstatat", "the same, by libc" },
    { "getuid", "libraries" },
    { "geteuid", "libraries" },
    { "getgid", "libraries" },
    { "getegid", "libraries" },
    { NULL },
};

int webhooks_main(const struct role_row *self)
{
    auto_free struct webhooks *webhooks = NEW(struct webhooks);
    struct err err;
    int code = 1;

    if (role_open(self, webhooks, &err))
        code = forker_run(&(struct forker_config){
            .what = "webhook",
            .message = MESSAGE_HOOK,
            .children_most = 2 * (LIMIT_HOOKS + LIMIT_HOOK_CHECKS),
            .seconds = (LIMIT_HOOK_MS + READ_MS) / 1000,
            .limits = { .memory_bytes = LIMIT_HOOK_MEMORY_BYTES,
                        .cpu_s = LIMIT_HOOK_MS / 1000,
                        .files = CHILD_FILES,
                        .no_file_data = true },
            .calls = child_calls,
            .serve = serve,
            .keeper_event = on_keeper_event,
            .context = webhooks,
        });
    else
        log_error("cannot start: %s", err_text(&err));
    buf_done(&webhooks->resolv_conf);
    free(webhooks->roots);
    return code;
}
