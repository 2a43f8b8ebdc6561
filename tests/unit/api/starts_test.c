/*
 * Slow starts of one key must not slow down the starts of other keys: guestd in the greedy key's sandboxes does not
 * answer, and requests of other keys are served meanwhile.
 */
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "served.h"

enum { BURST = 60 }; /* more than may start at once, and what the fake has room for */

static char greedy_key[STORE_KEY_CHARS + 1];

static int set_up(void **state)
{
    struct secret text = { 0 };
    struct key_row row;

    served_set_up_only(state);
    struct served *s = *state;
    MUST(store_key_add(s->rig.disk.store, store_team_default(s->rig.disk.store), STR("greedy"), &s->rig.arena, &row,
                       &text, &err));
    memcpy(greedy_key, text.bytes, text.len);
    served_start(s);
    return 0;
}

static unsigned starts(struct served *s)
{
    pthread_mutex_lock(&s->rig.fake.lock);
    unsigned count = s->rig.fake.starts;
    pthread_mutex_unlock(&s->rig.fake.lock);
    return count;
}

static void guests_are(struct served *s, enum fake_start how)
{
    pthread_mutex_lock(&s->rig.fake.lock);
    s->rig.fake.start = how;
    pthread_mutex_unlock(&s->rig.fake.lock);
}

static int ask_to_create(struct served *s)
{
    static const char body[] = "{\"templateID\":\"base\"}";
    int fd = served_connect(s);

    MUST(fd_write_all(fd,
                      arena_format(&s->rig.arena,
                                   "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nConnection: close\r\n"
                                   "Content-Length: %zu\r\n\r\n%s",
                                   greedy_key, strlen(body), body),
                      &err));
    return fd;
}

static void check_created(int fd)
{
    char room[4096];
    size_t len = 0;
    ssize_t n;

    while ((n = recv(fd, room + len, sizeof room - 1 - len, 0)) > 0)
        len += (size_t)n;
    room[len] = '\0';
    if (strncmp(room, "HTTP/1.1 201 ", 13) != 0)
        fail_msg("%s", room);
    close(fd);
}

static void a_key_whose_guests_are_silent_does_not_make_others_wait(void **state)
{
    struct served *s = *state;
    int fds[BURST];

    guests_are(s, FAKE_GUEST_IS_SILENT);
    for (int i = 0; i < BURST; i++)
        fds[i] = ask_to_create(s);
    rig_wait_silent(&s->rig, LIMIT_STARTS_PER_KEY);
    guests_are(s, FAKE_STARTS);
    const char *id = served_create(s, "{\"templateID\":\"base\"}");
    assert_int_equal(CALL(s, "GET", "/v2/sandboxes", NULL).status, 200);
    assert_int_equal(json_array_size(s->last), 1);
    struct str target = arena_format(&s->rig.arena, "/sandboxes/%s", id);
    assert_int_equal(CALL(s, "DELETE", arena_text(&s->rig.arena, target), NULL).status, 204);
    /* The others of the burst have not even begun. */
    assert_int_equal(starts(s), LIMIT_STARTS_PER_KEY + 1);
    rig_break_silence(&s->rig);
    for (int i = 0; i < BURST; i++)
        check_created(fds[i]);
    assert_int_equal(starts(s), BURST + 1);
}

static void a_client_that_leaves_before_its_turn_gets_no_sandbox(void **state)
{
    struct served *s = *state;
    int fds[LIMIT_STARTS_PER_KEY];

    guests_are(s, FAKE_GUEST_IS_SILENT);
    for (int i = 0; i < LIMIT_STARTS_PER_KEY; i++)
        fds[i] = ask_to_create(s);
    rig_wait_silent(&s->rig, LIMIT_STARTS_PER_KEY);
    int impatient = ask_to_create(s), patient = ask_to_create(s);
    /* The answer to a later request shows that those two have arrived; the next one, that `impatient` has left. */
    assert_int_equal(CALL(s, "GET", "/v2/sandboxes", NULL).status, 200);
    close(impatient);
    assert_int_equal(CALL(s, "GET", "/v2/sandboxes", NULL).status, 200);
    guests_are(s, FAKE_STARTS);
    rig_break_silence(&s->rig);
    for (int i = 0; i < LIMIT_STARTS_PER_KEY; i++)
        check_created(fds[i]);
    check_created(patient);
    assert_int_equal(starts(s), LIMIT_STARTS_PER_KEY + 1);
    assert_int_equal(rig_rows(&s->rig), LIMIT_STARTS_PER_KEY + 1);
}

static void a_queue_that_is_too_long_is_told_to_come_back(void **state)
{
    enum { BODY_BYTES = 1000000, WAITING = LIMIT_STARTS_WAITING_BYTES / BODY_BYTES };
    struct served *s = *state;
    int fds[LIMIT_STARTS_PER_KEY + WAITING];
    char *body = arena_alloc(&s->rig.arena, BODY_BYTES + 1);
    struct http_field fields[] = { { STR("X-API-Key"), str_from(greedy_key) } };

    /* As large as a body may be: what waits is bounded by what it weighs. */
    memset(body, ' ', BODY_BYTES);
    memcpy(body, "{\"templateID\":\"base\"}", 21);
    body[BODY_BYTES] = '\0';
    guests_are(s, FAKE_GUEST_IS_SILENT);
    for (size_t i = 0; i < COUNT_OF(fds); i++) {
        fds[i] = served_connect(s);
        MUST(
            fd_write_all(fds[i],
                         arena_format(&s->rig.arena,
                                      "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nConnection: close\r\n"
                                      "Content-Length: %d\r\n\r\n",
                                      greedy_key, BODY_BYTES),
                         &err));
        MUST(fd_write_all(fds[i], str_of(body, BODY_BYTES), &err));
    }
    rig_wait_silent(&s->rig, LIMIT_STARTS_PER_KEY);
    struct http_answer answer = served_call_bare(s, "POST", "/v2/sandboxes", body, fields, 1);
    check_error(s, &answer, 429, "waiting to be started");
    assert_string_equal(answer_header(s, &answer, "Should-Retry"), "true");
    guests_are(s, FAKE_STARTS);
    rig_break_silence(&s->rig);
    for (size_t i = 0; i < COUNT_OF(fds); i++)
        check_created(fds[i]);
}

#define API_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, served_tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        API_CASE(a_key_whose_guests_are_silent_does_not_make_others_wait),
        API_CASE(a_client_that_leaves_before_its_turn_gets_no_sandbox),
        API_CASE(a_queue_that_is_too_long_is_told_to_come_back),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
