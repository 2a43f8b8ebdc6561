/*
 * What all dialects share: which one a request speaks, who may call what, lanes, limits, and requests from sandboxes.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mail_served.h"

#define SAID(s, text)                                                                           \
    do {                                                                                        \
        if (strcmp(fake.said, text))                                                            \
            fail_msg("said '%s', want '%s'; %.*s", fake.said, text, STR_ARG((s)->answer.body)); \
    } while (0)

static const struct mail_dialect *const dialects[] = { &mail_multimail, &mail_lobstermail, &mail_operator };

/* ---- the tables ---- */

static void every_route_needs_a_scope_or_is_public_on_purpose(void **state)
{
    (void)state;
    for (size_t d = 0; d < COUNT_OF(dialects); d++) {
        for (size_t i = 0; i < dialects[d]->route_count; i++) {
            const struct http_route *route = &dialects[d]->routes[i];
            unsigned who = (route->flags & MAIL_SCOPE_ALL ? 1u : 0u) + (route->flags & MAIL_PUBLIC ? 1u : 0u) +
                           (route->flags & MAIL_OPERATOR ? 1u : 0u) + (route->flags & MAIL_ANY_KEY ? 1u : 0u);
            if (who != 1)
                fail_msg("%s %s: one of scope, public, operator or any key", http_method_name[route->method],
                         route->pattern);
            if (!route->handler != !!(route->flags & MAIL_ABSENT))
                fail_msg("%s %s: a handler or MAIL_ABSENT", http_method_name[route->method], route->pattern);
            if (!route->help || strlen(route->help) < 8)
                fail_msg("%s %s has no help", http_method_name[route->method], route->pattern);
            if (!!(route->flags & MAIL_OPERATOR) != (dialects[d] == &mail_operator))
                fail_msg("%s %s: only the operator's table is the operator's", http_method_name[route->method],
                         route->pattern);
        }
    }
}

/* Without a key each of these would be a way to change something. */
static void public_routes_are_these(void **state)
{
    static const char *const allowed[] = { "/v1/files/{token}",
                                           "/v1/openapi.json",
                                           "/health",
                                           "/v1/signup",
                                           "/v1/approve/{token}",
                                           "/approve/{token}",
                                           "/v1/approve/{token}/attachments/{index}",
                                           "/approve/{token}/attachments/{index}" };

    (void)state;
    for (size_t d = 0; d < COUNT_OF(dialects); d++) {
        for (size_t i = 0; i < dialects[d]->route_count; i++) {
            const struct http_route *route = &dialects[d]->routes[i];
            bool is_allowed = (route->flags & MAIL_ABSENT) != 0;
            for (size_t k = 0; k < COUNT_OF(allowed); k++)
                is_allowed = is_allowed || !strcmp(route->pattern, allowed[k]);
            if ((route->flags & MAIL_PUBLIC) && !is_allowed)
                fail_msg("%s is public", route->pattern);
        }
    }
}

/* A row behind another one that takes all its requests would never be called. */
static void no_route_hides_another(void **state)
{
    struct arena arena;
    struct err err;

    (void)state;
    arena_init(&arena);
    for (size_t d = 0; d < COUNT_OF(dialects); d++) {
        for (size_t i = 0; i < dialects[d]->route_count; i++) {
            const struct http_route *route = &dialects[d]->routes[i];
            struct http_head head = { .method = route->method, .path = str_from(route->pattern) };
            struct http_match match;
            assert_true(http_route(dialects[d]->routes, dialects[d]->route_count, &head, &arena, &match, &err));
            if (match.route != route)
                fail_msg("%s %s is behind %s", http_method_name[route->method], route->pattern, match.route->pattern);
        }
    }
    arena_done(&arena);
}

/* ---- which dialect ---- */

static const struct mail_dialect *dialect_of(const char *path, const char *name, const char *value, const char *query)
{
    static struct arena arena;
    struct http_head head = { .path = str_from(path), .query = str_from(query) };

    if (name) {
        head.header_count = 1;
        head.headers[0] = (struct http_header){ str_from(name), str_from(value) };
    }
    const struct mail_dialect *got = mail_dialect_of(&head, &arena);
    arena_done(&arena);
    return got;
}

static void the_key_says_which_dialect_is_meant(void **state)
{
    (void)state;
    assert_ptr_equal(dialect_of("/v1/webhooks", "Authorization", "Bearer lm_sk_live_1", ""), &mail_lobstermail);
    assert_ptr_equal(dialect_of("/v1/webhooks", "Authorization", "bearer  mm_live_1", ""), &mail_multimail);
    assert_ptr_equal(dialect_of("/v1/webhooks", "X-API-Key", "lm_sk_test_1", ""), &mail_lobstermail);
    assert_ptr_equal(dialect_of("/v1/emails/send", "X-API-Key", "mm_live_1", ""), &mail_multimail);
    assert_ptr_equal(dialect_of("/v1/inboxes", "Authorization", "Bearer mm_live_1", ""), &mail_multimail);
}

static void without_a_key_the_path_says_it(void **state)
{
    (void)state;
    assert_ptr_equal(dialect_of("/v1/signup", NULL, NULL, ""), &mail_lobstermail);
    assert_ptr_equal(dialect_of("/v1/inboxes/ibx_1/emails", NULL, NULL, ""), &mail_lobstermail);
    assert_ptr_equal(dialect_of("/v1/inboxesque", NULL, NULL, ""), &mail_multimail);
    assert_ptr_equal(dialect_of("/v1/send", NULL, NULL, ""), &mail_multimail);
    assert_ptr_equal(dialect_of("/v1/account", "X-API-Key", "e2b_1", ""), &mail_multimail);
    assert_ptr_equal(dialect_of("/mail/pending", "Authorization", "Bearer lm_sk_live_1", ""), &mail_operator);
    assert_ptr_equal(dialect_of("/v1/ws", NULL, NULL, "token=mm_live_1"), &mail_multimail);
    assert_ptr_equal(dialect_of("/v1/ws", NULL, NULL, "token=lm_sk_live_1"), &mail_lobstermail);
    assert_ptr_equal(dialect_of("/v1/emails/send", "Host", "api.lobstermail.ai", ""), &mail_lobstermail);
    assert_ptr_equal(dialect_of("/v1/emails/send", "Host", "api.multimail.dev", ""), &mail_multimail);
    /* A key in the URL counts for WebSockets only: URLs are logged. */
    assert_ptr_equal(dialect_of("/v1/account", NULL, NULL, "token=lm_sk_live_1"), &mail_multimail);
}

static void the_api_for_sandboxes_keeps_its_paths(void **state)
{
    static const char *const not_ours[] = {
        "/v2/sandboxes", "/sandboxes", "/health", "/v10/x", "/mailbox", "/approved"
    };
    static const char *const ours[] = { "/v1", "/v1/send", "/mail/pending", "/approve/x" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(not_ours); i++)
        assert_false(mail_api_takes(&(struct http_head){ .path = str_from(not_ours[i]) }));
    for (size_t i = 0; i < COUNT_OF(ours); i++)
        assert_true(mail_api_takes(&(struct http_head){ .path = str_from(ours[i]) }));
}

static const char *place_of(int family, const char *text)
{
    static char room[MAIL_PLACE_BYTES];
    struct sockaddr_storage peer = { .ss_family = (sa_family_t)family };

    if (family == AF_INET)
        assert_int_equal(inet_pton(AF_INET, text, &((struct sockaddr_in *)&peer)->sin_addr), 1);
    if (family == AF_INET6)
        assert_int_equal(inet_pton(AF_INET6, text, &((struct sockaddr_in6 *)&peer)->sin6_addr), 1);
    mail_place(&peer, room);
    return room;
}

static void a_host_is_one_place_whatever_address_it_takes(void **state)
{
    (void)state;
    assert_string_equal(place_of(AF_INET, "192.0.2.1"), "192.0.2.1");
    assert_string_equal(place_of(AF_INET6, "::ffff:192.0.2.1"), "192.0.2.1");
    assert_string_equal(place_of(AF_INET6, "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    assert_string_equal(place_of(AF_INET6, "2001:db8:1:2:ffff::1"), "2001:db8:1:2::");
    assert_string_equal(place_of(AF_UNIX, ""), "local");
}

/* ---- who may ---- */

static void a_request_without_a_valid_key_is_refused(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "GET", "/v1/mailboxes", NULL, NULL), 401);
    assert_non_null(strstr(mail_text(s, "error"), "API key is missing"));
    assert_string_equal(mail_header(s, "WWW-Authenticate"), "Bearer realm=\"mail\"");
    assert_int_equal(mail_ask(s, "GET", "/v1/mailboxes", "mm_live_unknown", NULL), 401);
    assert_int_equal(mail_ask(s, "GET", "/v1/mailboxes", "e2b_0000", NULL), 401);
    SAID(s, "");
}

static void a_failing_store_does_not_look_like_a_wrong_key(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "GET", "/v1/mailboxes", KEY_BROKEN, NULL), 503);
    assert_string_equal(mail_header(s, "Retry-After"), "1");
}

static void the_key_may_be_in_either_header(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "GET", "/v1/mailboxes", KEY_READ, NULL), 200);
    assert_int_equal(
        mail_ask_with(s, "GET", "/v1/mailboxes", NULL, &(struct http_field){ STR("X-API-Key"), STR(KEY_READ) }, 1),
        200);
    SAID(s, "inbox_list\n");
}

static void a_key_without_the_scope_is_told_which_one(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "POST", "/v1/send", KEY_READ, "{}"), 403);
    assert_string_equal(mail_text(s, "error"), "Requires send scope");
    assert_int_equal(mail_ask(s, "GET", "/v1/oversight/pending", KEY_FULL, NULL), 403);
    assert_string_equal(mail_text(s, "error"), "Requires oversight or oversight_read scope");
    /* Admin stands for read and send, never for oversight. */
    assert_int_equal(mail_ask(s, "POST", "/v1/oversight/decide", KEY_FULL, "{}"), 403);
    assert_int_equal(mail_ask(s, "GET", "/v1/mailboxes/x/emails", KEY_EYES, NULL), 403);
    SAID(s, "");
}

static void the_operators_routes_need_the_admin_token(void **state)
{
    struct mail_served *s = *state;
    struct http_field token = { STR("X-Admin-Token"), STR(ADMIN) }, wrong = { STR("X-Admin-Token"), STR("x") };

    assert_int_equal(mail_ask(s, "GET", "/mail/inboxes", KEY_FULL, NULL), 401);
    assert_int_equal(mail_ask_with(s, "GET", "/mail/inboxes", NULL, &wrong, 1), 401);
    SAID(s, "");
    assert_int_equal(mail_ask_with(s, "GET", "/mail/inboxes", NULL, &token, 1), 200);
    SAID(s, "inbox_list\n");
    /* And the token opens nothing else. */
    assert_int_equal(mail_ask_with(s, "GET", "/v1/mailboxes", NULL, &token, 1), 401);
}

static void paths_and_methods_that_do_not_exist_say_so(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "GET", "/v1/nothing", KEY_FULL, NULL), 404);
    assert_non_null(strstr(mail_text(s, "error"), "/v1/nothing"));
    assert_int_equal(mail_ask(s, "PUT", "/v1/mailboxes", KEY_FULL, NULL), 405);
    assert_string_equal(mail_header(s, "Allow"), "GET, POST");
    assert_int_equal(mail_ask(s, "GET", "/mail/nothing", NULL, NULL), 404);
    assert_int_equal(mail_ask(s, "POST", "/v1/admin/recover-key", KEY_FULL, "{}"), 404);
}

static void what_the_service_has_and_we_do_not_is_501_with_a_reason(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "POST", "/v1/account", NULL, "{}"), 501);
    assert_non_null(strstr(mail_text(s, "error"), "cloister mail inbox create"));
    assert_int_equal(mail_ask(s, "POST", "/v1/domains", KEY_FULL, "{}"), 501);
    /* Whether it exists is told to those who may ask. */
    assert_int_equal(mail_ask(s, "POST", "/v1/domains", NULL, "{}"), 401);
}

static void mail_that_is_off_says_so(void **state)
{
    struct mail_served *s = *state;

    s->actions.mail = NULL;
    assert_int_equal(mail_ask(s, "GET", "/v1/mailboxes", KEY_FULL, NULL), 501);
    assert_string_equal(mail_text(s, "error"), "mail is off on this server");
}

/* ---- sizes and rates ---- */

static char *of_size(struct mail_served *s, size_t size)
{
    char *text = arena_alloc(&s->rig.arena, size + 1);

    memset(text, ' ', size);
    text[0] = '{';
    text[size - 1] = '}';
    return text;
}

static void bodies_are_limited_by_what_the_route_takes(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "POST", "/v1/contacts", KEY_FULL, of_size(s, LIMIT_CALL_BODY_BYTES + 1)), 413);
    assert_int_equal(mail_ask(s, "POST", "/v1/contacts", KEY_FULL, of_size(s, LIMIT_CALL_BODY_BYTES)), 400);
    assert_int_equal(mail_ask(s, "POST", "/v1/send", KEY_FULL, of_size(s, LIMIT_CALL_BODY_BYTES + 1)), 400);
    assert_int_equal(mail_ask(s, "POST", "/v1/send", KEY_FULL, of_size(s, LIMIT_MAIL_BODY_BYTES + 1)), 413);
    SAID(s, "");
}

static void a_key_that_asks_too_often_is_told_when_to_come_back(void **state)
{
    struct mail_served *s = *state;
    unsigned refused = 0;

    for (int i = 0; i < 10 && !refused; i++)
        refused = mail_ask(s, "GET", "/v1/mailboxes", KEY_READ, NULL) == 429;
    assert_true(refused);
    assert_string_equal(mail_header(s, "Retry-After"), "1");
    assert_non_null(mail_header(s, "RateLimit-Limit"));
    /* Another key is not affected. */
    assert_int_equal(mail_ask(s, "GET", "/v1/mailboxes", KEY_FULL, NULL), 200);
}

static void a_sandbox_that_asks_too_often_is_told_so_too(void **state)
{
    struct mail_served *s = *state;
    int refused = 0;

    s->sandbox_id = "sbx1";
    for (int i = 0; i < 60; i++)
        refused += mail_ask(s, "POST", "/v1/send", NULL, "{\"to\":\"a@b.c\",\"subject\":\"s\",\"text\":\"t\"}") == 429;
    assert_in_range(refused, 1, 59);
    /* Another one is not affected. */
    s->sandbox_id = "sbx2";
    assert_int_not_equal(mail_ask(s, "POST", "/v1/send", NULL, "{}"), 429);
}

static int set_up_with_a_rate(void **state)
{
    struct mail_served *s;

    mail_served_set_up(state);
    s = *state;
    rig_stop(&s->rig);
    s->requests_per_s = 2;
    rig_start(&s->rig);
    return 0;
}

/* ---- lanes ---- */

static int ask(struct mail_served *s, const char *key)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char text[256];

    at.sin_port = htons((uint16_t)atoi(strchr(s->address, ':') + 1));
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    int len = snprintf(text, sizeof text,
                       "GET /v1/mailboxes/x/emails HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\n\r\n", key);
    assert_int_equal(send(fd, text, (size_t)len, 0), len);
    return fd;
}

static void an_inbox_with_slow_calls_leaves_workers_for_others(void **state)
{
    struct mail_served *s = *state;
    int slow[3 * LIMIT_MAIL_CALLS_EACH];

    pthread_mutex_lock(&fake.gate);
    for (size_t i = 0; i < COUNT_OF(slow); i++)
        slow[i] = ask(s, KEY_FULL);
    while (fake.lists_at_work < LIMIT_MAIL_CALLS_EACH)
        usleep(1000);
    /* A caller with another share is answered at once, and no more of the slow ones have a worker. */
    assert_int_equal(mail_ask(s, "GET", "/v1/oversight/pending", KEY_EYES, NULL), 200);
    usleep(20000);
    assert_int_equal(fake.lists_at_work, LIMIT_MAIL_CALLS_EACH);
    /* Clients that go away while they wait are forgotten. */
    close(slow[COUNT_OF(slow) - 1]);
    usleep(20000);
    pthread_mutex_unlock(&fake.gate);
    for (size_t i = 0; i + 1 < COUNT_OF(slow); i++) {
        char answer[12];
        assert_int_equal(recv(slow[i], answer, sizeof answer, MSG_WAITALL), (int)sizeof answer);
        assert_memory_equal(answer, "HTTP/1.1 200", 12);
        close(slow[i]);
    }
    assert_int_equal(fake.lists_at_work, COUNT_OF(slow) - 1);
}

/* ---- inside a sandbox ---- */

static void a_request_from_a_sandbox_acts_as_its_inbox(void **state)
{
    struct mail_served *s = *state;

    s->sandbox_id = "sbx1";
    fake.state = MAIL_HELD;
    assert_int_equal(mail_ask(s, "POST", "/v1/send", NULL, "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\"}"), 202);
    assert_true(str_starts(str_from(fake.said), STR("by sandbox sbx1 key ''\nsend inbox= to=a@b.c ")));
    /* A key of another inbox is refused, an unknown one ignored: the action decides. */
    assert_int_equal(mail_ask(s, "GET", "/v1/mailboxes", KEY_FULL, NULL), 401);
    assert_int_equal(mail_ask(s, "GET", "/v1/mailboxes", "mm_live_old", NULL), 403);
    assert_string_equal(mail_text(s, "error"), "Requires read scope");
    assert_int_equal(mail_ask(s, "GET", "/health", NULL, NULL), 200);
    assert_string_equal(mail_text(s, "status"), "ok");
}

static void a_sandbox_cannot_reach_the_operators_routes(void **state)
{
    struct mail_served *s = *state;
    struct http_field token = { STR("X-Admin-Token"), STR(ADMIN) };

    s->sandbox_id = "sbx1";
    for (size_t i = 0; i < mail_operator.route_count; i++) {
        const struct http_route *route = &mail_operator.routes[i];
        assert_int_equal(mail_ask_with(s, http_method_name[route->method], route->pattern, NULL, &token, 1), 404);
    }
    assert_int_equal(mail_ask(s, "GET", "/sandboxes", NULL, NULL), 404);
    SAID(s, "");
}

/* ---- errors ---- */

static void errors_of_actions_have_the_status_of_their_kind(void **state)
{
    static const struct {
        enum err_kind kind;
        unsigned status;
    } of[] = { { ERR_INVALID, 400 }, { ERR_DENIED, 403 }, { ERR_NOT_FOUND, 404 }, { ERR_CONFLICT, 409 },
               { ERR_LIMIT, 400 },   { ERR_FULL, 507 },   { ERR_TIMEOUT, 504 },   { ERR_UNAVAILABLE, 503 } };
    struct mail_served *s = *state;

    for (size_t i = 0; i < COUNT_OF(of); i++) {
        err_note(&fake.fail, of[i].kind, "the reason");
        assert_int_equal(mail_ask(s, "GET", "/v1/mailboxes", KEY_FULL, NULL), of[i].status);
        assert_string_equal(mail_text(s, "error"), "the reason");
    }
    err_note(&fake.fail, ERR_INTERNAL, "secret detail");
    assert_int_equal(mail_ask(s, "GET", "/v1/mailboxes", KEY_FULL, NULL), 500);
    assert_null(strstr(mail_text(s, "error"), "secret detail"));
    assert_non_null(strstr(mail_text(s, "error"), "reference"));
}

static void the_other_dialects_write_errors_in_their_own_shape(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "GET", "/v1/nothing", KEY_LOBSTER, NULL), 404);
    assert_string_equal(mail_text(s, "error"), "not_found");
    assert_non_null(strstr(mail_text(s, "message"), "/v1/nothing"));
    assert_non_null(mail_text(s, "requestId"));
    assert_int_equal(mail_ask(s, "GET", "/mail/inboxes", NULL, NULL), 401);
    assert_int_equal(json_integer_value(json_object_get(s->last, "code")), 401);
    assert_non_null(strstr(mail_text(s, "message"), "X-Admin-Token"));
}

#define SERVED(function) cmocka_unit_test_setup_teardown(function, mail_served_set_up, mail_served_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(every_route_needs_a_scope_or_is_public_on_purpose),
        CASE(public_routes_are_these),
        CASE(no_route_hides_another),
        CASE(the_key_says_which_dialect_is_meant),
        CASE(without_a_key_the_path_says_it),
        CASE(the_api_for_sandboxes_keeps_its_paths),
        CASE(a_host_is_one_place_whatever_address_it_takes),
        SERVED(a_request_without_a_valid_key_is_refused),
        SERVED(a_failing_store_does_not_look_like_a_wrong_key),
        SERVED(the_key_may_be_in_either_header),
        SERVED(a_key_without_the_scope_is_told_which_one),
        SERVED(the_operators_routes_need_the_admin_token),
        SERVED(paths_and_methods_that_do_not_exist_say_so),
        SERVED(what_the_service_has_and_we_do_not_is_501_with_a_reason),
        SERVED(mail_that_is_off_says_so),
        SERVED(bodies_are_limited_by_what_the_route_takes),
        cmocka_unit_test_setup_teardown(a_key_that_asks_too_often_is_told_when_to_come_back, set_up_with_a_rate,
                                        mail_served_tear_down),
        cmocka_unit_test_setup_teardown(a_sandbox_that_asks_too_often_is_told_so_too, set_up_with_a_rate,
                                        mail_served_tear_down),
        SERVED(an_inbox_with_slow_calls_leaves_workers_for_others),
        SERVED(a_request_from_a_sandbox_acts_as_its_inbox),
        SERVED(a_sandbox_cannot_reach_the_operators_routes),
        SERVED(errors_of_actions_have_the_status_of_their_kind),
        SERVED(the_other_dialects_write_errors_in_their_own_shape),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
