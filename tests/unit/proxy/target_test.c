#include "proxy/target.h"

#include <stdio.h>

#include "test.h"

static void read_head(const char *text, struct http_head *out)
{
    size_t used;
    struct err err;
    if (http_parse_request(str_from(text), out, &used, &err) != HTTP_DONE)
        fail_msg("not a request: %s: %s", text, err_text(&err));
}

static const struct {
    const char *host;
    const char *headers;
    enum target_verdict verdict;
    unsigned port;
    const char *id;
} routes[] = {
    /* by host */
    { "8000-iabc.example.com", "", TARGET_FOUND, 8000, "iabc" },
    { "8000-iabc.example.com:7070", "", TARGET_FOUND, 8000, "iabc" },
    { "49983-iabc.localhost", "", TARGET_FOUND, 49983, "iabc" },
    { "80-iabc-6532622b.example.com", "", TARGET_FOUND, 80, "iabc" },
    { "80-IABC.Example.com", "", TARGET_FOUND, 80, "iabc" },
    { "65535-a.b", "", TARGET_FOUND, 65535, "a" },
    { "0080-iabc.example.com", "", TARGET_FOUND, 80, "iabc" },
    { "0-iabc.example.com", "", TARGET_BAD_PORT, 0, "" },
    { "65536-iabc.example.com", "", TARGET_BAD_PORT, 0, "" },
    { "99999999999999999999-iabc.example.com", "", TARGET_BAD_PORT, 0, "" },
    { "8000-i_abc.example.com", "", TARGET_BAD_ID, 0, "" },
    { "8000-.example.com", "", TARGET_BAD_ID, 0, "" },
    { "8000--iabc.example.com", "", TARGET_BAD_ID, 0, "" },
    { "8000-abcdefghijklmnopqrstuvwxyz012345.example.com", "", TARGET_BAD_ID, 0, "" },
    /* the host wins over the headers that SDKs always send */
    { "8000-iabc.example.com", "E2b-Sandbox-Id: iother\r\nE2b-Sandbox-Port: 49983\r\n", TARGET_FOUND, 8000, "iabc" },
    { "8000-i_abc.example.com", "E2b-Sandbox-Id: iother\r\nE2b-Sandbox-Port: 49983\r\n", TARGET_BAD_ID, 0, "" },
    /* by header, on whatever host */
    { "localhost:7070", "E2b-Sandbox-Id: iabc\r\nE2b-Sandbox-Port: 49983\r\n", TARGET_FOUND, 49983, "iabc" },
    { "127.0.0.1:7070", "e2b-sandbox-id: iabc\r\ne2b-sandbox-port: 80\r\n", TARGET_FOUND, 80, "iabc" },
    { "[::1]:7070", "E2b-Sandbox-Id: iabc\r\nE2b-Sandbox-Port: 80\r\n", TARGET_FOUND, 80, "iabc" },
    { "sandbox.example.com", "E2b-Sandbox-Id: iabc\r\nE2b-Sandbox-Port: 80\r\n", TARGET_FOUND, 80, "iabc" },
    { "my-server.example.com", "E2b-Sandbox-Id: iabc\r\nE2b-Sandbox-Port: 80\r\n", TARGET_FOUND, 80, "iabc" },
    { "8000-iabc", "E2b-Sandbox-Id: iother\r\nE2b-Sandbox-Port: 80\r\n", TARGET_FOUND, 80, "iother" },
    { "localhost", "E2b-Sandbox-Id: iabc-6532622b\r\nE2b-Sandbox-Port: 80\r\n", TARGET_FOUND, 80, "iabc" },
    { "localhost", "E2b-Sandbox-Id: iabc\r\n", TARGET_MISSING_HEADER, 0, "" },
    { "localhost", "E2b-Sandbox-Port: 80\r\n", TARGET_MISSING_HEADER, 0, "" },
    { "localhost", "E2b-Sandbox-Id: IABC\r\nE2b-Sandbox-Port: 80\r\n", TARGET_BAD_ID, 0, "" },
    { "localhost", "E2b-Sandbox-Id:\r\nE2b-Sandbox-Port: 80\r\n", TARGET_BAD_ID, 0, "" },
    { "localhost", "E2b-Sandbox-Id: ../etc\r\nE2b-Sandbox-Port: 80\r\n", TARGET_BAD_ID, 0, "" },
    { "localhost", "E2b-Sandbox-Id: iabc\r\nE2b-Sandbox-Port: http\r\n", TARGET_BAD_PORT, 0, "" },
    { "localhost", "E2b-Sandbox-Id: iabc\r\nE2b-Sandbox-Port: -1\r\n", TARGET_BAD_PORT, 0, "" },
    { "localhost", "E2b-Sandbox-Id: iabc\r\nE2b-Sandbox-Port:\r\n", TARGET_BAD_PORT, 0, "" },
    /* an API call of an SDK that sends them everywhere; a service of the user's may have keys of its own */
    { "localhost", "E2b-Sandbox-Id: iabc\r\nE2b-Sandbox-Port: 49983\r\nX-API-Key: e2b_0\r\n", TARGET_NONE, 0, "" },
    { "localhost", "E2b-Sandbox-Id: iabc\r\nE2b-Sandbox-Port: 80\r\nX-API-Key: mine\r\n", TARGET_FOUND, 80, "iabc" },
    { "49983-iabc.x.y", "E2b-Sandbox-Id: iabc\r\nE2b-Sandbox-Port: 49983\r\nX-API-Key: e\r\n", TARGET_FOUND, 49983,
      "iabc" },
    /* neither: the API's */
    { "api.example.com", "", TARGET_NONE, 0, "" },
    { "127.0.0.1:7070", "", TARGET_NONE, 0, "" },
    { "localhost:7070", "", TARGET_NONE, 0, "" },
    { "8000-iabc", "", TARGET_NONE, 0, "" },
    { "8000.example.com", "", TARGET_NONE, 0, "" },
    { "web-iabc.example.com", "", TARGET_NONE, 0, "" },
    { "-iabc.example.com", "", TARGET_NONE, 0, "" },
};

static void every_host_and_header_leads_where_it_should(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(routes); i++) {
        char text[1024];
        struct http_head head;
        struct target target = { 0 };
        snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: %s\r\n%s\r\n", routes[i].host, routes[i].headers);
        read_head(text, &head);
        enum target_verdict verdict = target_of(&head, &target);
        if (verdict != routes[i].verdict || target.port != routes[i].port || strcmp(target.id, routes[i].id) != 0)
            fail_msg("%s %s: got verdict %d, port %u, id '%s'", routes[i].host, routes[i].headers, (int)verdict,
                     target.port, target.id);
    }
}

static void a_preflight_is_known_by_the_headers_it_asks_for_or_its_path(void **state)
{
    (void)state;
    struct http_head head;
    struct target target;
    read_head("OPTIONS /files HTTP/1.1\r\nHost: localhost\r\nAccess-Control-Request-Method: POST\r\n"
              "Access-Control-Request-Headers: content-type, e2b-sandbox-id, e2b-sandbox-port\r\n\r\n",
              &head);
    assert_int_equal(target_of(&head, &target), TARGET_PREFLIGHT);
    assert_true(target_is_preflight(&head));
    /* a signed link has no routing headers */
    read_head("OPTIONS /files?path=%2Fa&signature=v1_x HTTP/1.1\r\nHost: localhost\r\n"
              "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-requested-with\r\n\r\n",
              &head);
    assert_int_equal(target_of(&head, &target), TARGET_PREFLIGHT);
    /* the API has preflights of its own */
    read_head("OPTIONS /sandboxes HTTP/1.1\r\nHost: localhost\r\nAccess-Control-Request-Method: POST\r\n"
              "Access-Control-Request-Headers: x-api-key\r\n\r\n",
              &head);
    assert_int_equal(target_of(&head, &target), TARGET_NONE);
    read_head("OPTIONS / HTTP/1.1\r\nHost: localhost\r\nAccess-Control-Request-Headers: e2b-sandbox-id\r\n\r\n", &head);
    assert_int_equal(target_of(&head, &target), TARGET_NONE);
}

static void leading_slashes_become_one(void **state)
{
    (void)state;
    CHECK_STR(target_path(STR("/a//b")), STR("/a//b"));
    CHECK_STR(target_path(STR("//process.Process/Start")), STR("/process.Process/Start"));
    CHECK_STR(target_path(STR("////")), STR("/"));
    CHECK_STR(target_path(STR("/")), STR("/"));
}

static void control_paths_are_known_in_every_spelling(void **state)
{
    (void)state;
    static const struct {
        struct str raw, plain;
    } paths[] = {
        { STR_INIT("/init"), STR_INIT("/init") },
        { STR_INIT("//init/"), STR_INIT("/init") },
        { STR_INIT("/in%69t"), STR_INIT("/init") },
        { STR_INIT("/./freeze"), STR_INIT("/freeze") },
        { STR_INIT("/x/../unfreeze"), STR_INIT("/unfreeze") },
        { STR_INIT("/../../fsfreeze"), STR_INIT("/fsfreeze") },
        { STR_INIT("/fsthaw/x/.."), STR_INIT("/fsthaw") },
        { STR_INIT("/%2e/collapse"), STR_INIT("/collapse") },
        { STR_INIT("/x%2f..%2fupgrade"), STR_INIT("/upgrade") },
        { STR_INIT("/"), STR_INIT("") },
        { STR_INIT("/health"), STR_INIT("") },
        { STR_INIT("/init/x"), STR_INIT("") },
        { STR_INIT("/initial"), STR_INIT("") },
        { STR_INIT("/INIT"), STR_INIT("") },
        { STR_INIT("/init%zz"), STR_INIT("") },
    };
    struct arena arena;
    arena_init(&arena);
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        struct str plain = STR("");
        bool known = target_is_control_path(paths[i].raw, &arena, &plain);
        CHECK_STR(plain, paths[i].plain);
        assert_int_equal(known, paths[i].plain.len > 0);
    }
    arena_done(&arena);
}

static void complaints_are_the_ones_that_clients_know(void **state)
{
    (void)state;
    assert_string_equal(target_complaint(TARGET_NONE), "Invalid host\n");
    assert_string_equal(target_complaint(TARGET_MISSING_HEADER), "missing header\n");
    assert_string_equal(target_complaint(TARGET_BAD_ID), "Invalid sandbox ID\n");
    assert_string_equal(target_complaint(TARGET_BAD_PORT), "Invalid sandbox port\n");
    assert_null(target_complaint(TARGET_FOUND));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(every_host_and_header_leads_where_it_should),
        CASE(a_preflight_is_known_by_the_headers_it_asks_for_or_its_path),
        CASE(leading_slashes_become_one),
        CASE(control_paths_are_known_in_every_spelling),
        CASE(complaints_are_the_ones_that_clients_know),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
