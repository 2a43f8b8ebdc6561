/*
 * Slow starts of one key must not slow down the starts of other keys: guestd in the greedy key's sandboxes does not
 * answer, and requests of other keys are served meanwhile.
 */
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../template/guestd_fake.h"
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

static int ask_for(struct served *s, const char *body)
{
    int fd = served_connect(s);

    MUST(fd_write_all(fd,
                      arena_format(&s->rig.arena,
                                   "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nConnection: close\r\n"
                                   "Content-Length: %zu\r\n\r\n%s",
                                   greedy_key, strlen(body), body),
                      &err));
    return fd;
}

static int ask_to_create(struct served *s)
{
    return ask_for(s, "{\"templateID\":\"base\"}");
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

/* A template with a start command, whose processes are in no image. */
static void make_template(struct served *s, const char *alias)
{
    struct store *store = s->rig.disk.store;
    const struct str tag = STR("default"),
                     layer = STR("00000000000000000000000000000000000000000000000000000000000000aa");
    struct built_template template;
    struct build_row row;

    MUST(store_build_register(store,
                              &(struct build_registration){ .team_id = store_team_default(store),
                                                            .alias = str_from(alias),
                                                            .tag_count = 1,
                                                            .tags = &tag,
                                                            .cpu_count = 1,
                                                            .memory_mb = 512,
                                                            .guestd_version = STR("0.6.13") },
                              &s->rig.arena, &template, &row, &err));
    MUST(store_build_begin(store, row.id, &err));
    row = (struct build_row){ .id = row.id,
                              .state = BUILD_READY,
                              .disk_mb = 5120,
                              .guestd_version = STR("0.6.13"),
                              .layer_count = 1,
                              .layers = &layer,
                              .context = { STR("user"), STR("/"), STR("{}") },
                              .start_cmd = STR("serve"),
                              .ready_cmd = STR("is-ready"),
                              .start_context = { STR("user"), STR("/"), STR("{}") } };
    MUST(store_build_finish(store, &row, &err));
}

static struct guestd_fake guestd;

static int set_up_guestd(void **state)
{
    assert_int_equal(set_up(state), 0);
    guestd_fake_make(&guestd);
    ((struct served *)*state)->rig.fake.guestd_port = guestd.port;
    return 0;
}

static int tear_down_guestd(void **state)
{
    assert_int_equal(served_tear_down(state), 0);
    guestd_fake_drop(&guestd);
    return 0;
}

static void creates_that_wait_for_a_start_command_leave_the_others_their_turn(void **state)
{
    enum { SLOW = LIMIT_STARTS_PER_KEY + 2 };
    struct guestd_rule rules[] = { { .has = "is-ready", .hangs = true }, { 0 } };
    struct served *s = *state;
    int fds[SLOW];

    guestd.rules = rules;
    make_template(s, "slow");
    for (int i = 0; i < SLOW; i++)
        fds[i] = ask_for(s, "{\"templateID\":\"slow\"}");
    while (guestd_fake_count(&guestd, "is-ready") < LIMIT_SLOW_STARTS_PER_KEY)
        usleep(1000);
    int impatient = ask_for(s, "{\"templateID\":\"slow\"}");
    /* As many of the same key as it may start at once, one after the other. */
    for (int i = 0; i < LIMIT_STARTS_PER_KEY; i++)
        check_created(ask_to_create(s));
    (void)served_create(s, "{\"templateID\":\"base\"}");
    /* Those that wait for their turn have no sandbox yet. */
    assert_int_equal(starts(s), LIMIT_SLOW_STARTS_PER_KEY + LIMIT_STARTS_PER_KEY + 1);
    /* One that leaves meanwhile gets none. */
    close(impatient);
    assert_int_equal(CALL(s, "GET", "/v2/sandboxes", NULL).status, 200);
    guestd_fake_go_on(&guestd, &rules[0]);
    for (int i = 0; i < SLOW; i++)
        check_created(fds[i]);
    assert_int_equal(starts(s), SLOW + LIMIT_STARTS_PER_KEY + 1);
    while (guestd_fake_count(&guestd, "serve") < SLOW) /* the last one may have been sent, and not read yet */
        usleep(1000);
}

static void a_create_that_waits_for_a_start_command_does_not_keep_a_server_from_stopping(void **state)
{
    struct guestd_rule rules[] = { { .has = "is-ready", .hangs = true }, { 0 } };
    struct served *s = *state;

    guestd.rules = rules;
    make_template(s, "slow");
    int fd = ask_for(s, "{\"templateID\":\"slow\"}");
    while (guestd_fake_count(&guestd, "is-ready") < 1)
        usleep(1000);
    served_stop(s); /* which waits for its workers */
    close(fd);
}

#define API_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, served_tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        API_CASE(a_key_whose_guests_are_silent_does_not_make_others_wait),
        API_CASE(a_client_that_leaves_before_its_turn_gets_no_sandbox),
        API_CASE(a_queue_that_is_too_long_is_told_to_come_back),
        cmocka_unit_test_setup_teardown(creates_that_wait_for_a_start_command_leave_the_others_their_turn,
                                        set_up_guestd, tear_down_guestd),
        cmocka_unit_test_setup_teardown(a_create_that_waits_for_a_start_command_does_not_keep_a_server_from_stopping,
                                        set_up_guestd, tear_down_guestd),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
