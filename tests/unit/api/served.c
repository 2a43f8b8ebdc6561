#include "served.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "io/listen.h"

static const struct str layer[] = { STR_INIT("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef") };
static const struct str alias[] = { STR_INIT("base") };

static void on_request(struct http_exchange *ex, void *context)
{
    struct served *s = context;

    api_handle(s->api, ex);
}

static void put_template(struct store *store)
{
    struct template_row row = { .id = STR("tbase"),
                                .cpu_count = 2,
                                .memory_mb = 1024,
                                .disk_mb = 5120,
                                .guestd_version = STR(GUESTD_API_VERSION),
                                .created_us = 1000000,
                                .layer_count = 1,
                                .layers = layer,
                                .alias_count = 1,
                                .aliases = alias };

    MUST(store_template_put(store, &row, &err));
}

static void before_run(struct rig *rig)
{
    struct served *s = container_of(rig, struct served, rig);
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    struct err err;

    s->actions = (struct actions){ .store = rig->disk.store,
                                   .sandboxes = rig->all,
                                   .admin_hash = &s->admin_hash,
                                   .internet = !s->internet_is_off,
                                   .meters = meters_new(s->requests_per_s) };
    s->api = api_new(&(struct api_config){
        .loop = rig->loop, .workers = rig->workers, .actions = &s->actions, .domain = s->domain });
    int fd = listen_open(STR("127.0.0.1:0"), &err);
    assert_true(fd >= 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    snprintf(s->address, sizeof s->address, "127.0.0.1:%d", ntohs(at.sin_port));
    s->server = http_server_new(rig->loop, fd, &(struct http_server_config){ .on_request = on_request, .context = s });
    put_template(rig->disk.store);
}

static void after_run(struct rig *rig)
{
    struct served *s = container_of(rig, struct served, rig);

    http_server_free(s->server);
    api_free(s->api);
    meters_free(s->actions.meters);
}

void served_make(struct served *s)
{
    struct secret text = { 0 };
    struct key_row row;

    rig_make(&s->rig);
    s->rig.before_run = before_run;
    s->rig.after_run = after_run;
    char hash[STORE_HASH_BYTES];
    store_secret_hash(STR("admin-secret"), hash);
    assert_true(secret_set(&s->admin_hash, str_from(hash)));
    MUST(store_key_add(s->rig.disk.store, store_team_default(s->rig.disk.store), STR("test"), &s->rig.arena, &row,
                       &text, &err));
    memcpy(s->key, text.bytes, text.len);
}

void served_start(struct served *s)
{
    rig_start(&s->rig);
}

void served_stop(struct served *s)
{
    rig_stop(&s->rig);
}

void served_drop(struct served *s)
{
    json_decref(s->last);
    rig_drop(&s->rig);
}

/* ---- requests ---- */

struct http_answer served_call_bare(struct served *s, const char *method, const char *target, const char *body,
                                    const struct http_field *fields, size_t field_count)
{
    struct http_answer *answer = ARENA_NEW(&s->rig.arena, struct http_answer);

    MUST(http_fetch(&s->rig.arena, str_from(s->address), str_from(method), str_from(target), fields, field_count,
                    body ? str_from(body) : (struct str){ 0 }, 60000, answer, &err));
    json_decref(s->last);
    s->last = answer->body.len ? json_loadb(answer->body.at, answer->body.len, JSON_DECODE_ANY, NULL) : NULL;
    /* Whatever it is, browsers may read it, and a body is JSON. */
    assert_string_equal(answer_header(s, answer, "Access-Control-Allow-Origin"), "*");
    if (answer->body.len) {
        assert_non_null(s->last);
        assert_string_equal(answer_header(s, answer, "Content-Type"), "application/json; charset=utf-8");
    }
    if (answer->status < 300)
        assert_null(answer_header(s, answer, "Should-Retry"));
    if (answer->status == 429 || answer->status == 502 || answer->status == 503 || answer->status == 504)
        assert_non_null(answer_header(s, answer, "Should-Retry"));
    return *answer;
}

struct http_answer served_call(struct served *s, const char *method, const char *target, const char *body,
                               const struct http_field *fields, size_t field_count)
{
    struct http_field all[8] = { { STR("X-API-KEY"), str_from(s->key) } };

    assert_true(field_count < COUNT_OF(all));
    if (field_count)
        memcpy(all + 1, fields, field_count * sizeof *fields);
    return served_call_bare(s, method, target, body, all, field_count + 1);
}

const char *answer_header(struct served *s, const struct http_answer *answer, const char *name)
{
    const struct str *value = http_header(&answer->head, str_from(name));

    return value ? arena_text(&s->rig.arena, *value) : NULL;
}

const char *got_text(struct served *s, const char *name)
{
    const json_t *value = json_object_get(s->last, name);

    if (!json_is_string(value))
        fail_msg("no text '%s' in the answer", name);
    return json_string_value(value);
}

int64_t got_int(struct served *s, const char *name)
{
    const json_t *value = json_object_get(s->last, name);

    if (!json_is_integer(value))
        fail_msg("no number '%s' in the answer", name);
    return json_integer_value(value);
}

int64_t got_time(struct served *s, const char *name)
{
    int64_t us;

    if (!clock_parse(str_from(got_text(s, name)), &us))
        fail_msg("'%s' is no time", name);
    return us;
}

void check_error(struct served *s, const struct http_answer *answer, unsigned status, const char *in_message)
{
    if (answer->status != status)
        fail_msg("status %u, want %u: %.*s", answer->status, status, STR_ARG(answer->body));
    assert_int_equal(got_int(s, "code"), status);
    if (in_message && !strstr(got_text(s, "message"), in_message))
        fail_msg("'%s' has no '%s'", got_text(s, "message"), in_message);
}

int served_connect(struct served *s)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    to.sin_port = htons((uint16_t)atoi(strchr(s->address, ':') + 1));
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

const char *served_raw(struct served *s, struct str bytes)
{
    struct buf got = buf_make(&s->rig.arena, 1 << 20);
    int fd = served_connect(s);
    char room[4096];
    ssize_t n;

    MUST(fd_write_all(fd, bytes, &err));
    while ((n = recv(fd, room, sizeof room, 0)) > 0)
        buf_add(&got, str_of(room, (size_t)n));
    close(fd);
    return arena_text(&s->rig.arena, buf_str(&got));
}

const char *served_create(struct served *s, const char *body)
{
    struct http_answer answer = CALL(s, "POST", "/v2/sandboxes", body);

    if (answer.status != 201)
        fail_msg("%u: %.*s", answer.status, STR_ARG(answer.body));
    return arena_text(&s->rig.arena, str_from(got_text(s, "sandboxID")));
}

const char *served_path(struct served *s, const char *before, const char *id, const char *after)
{
    return arena_text(&s->rig.arena, arena_format(&s->rig.arena, "%s%s%s", before, id, after));
}

int served_set_up_only(void **state)
{
    struct served *s = calloc(1, sizeof *s);

    served_make(s);
    *state = s;
    return 0;
}

int served_set_up(void **state)
{
    served_set_up_only(state);
    served_start(*state);
    return 0;
}

int served_tear_down(void **state)
{
    served_drop(*state);
    free(*state);
    return 0;
}
