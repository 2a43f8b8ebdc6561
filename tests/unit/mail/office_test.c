/*
 * Workers and composers are threads here, each at the other end of a socket pair. What they do depends on the operation.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "hand_clock.h"
#include "mail/hook.h"
#include "mail/inside.h"
#include "privsep/frame.h"
#include "privsep/message.h"
#include "test.h"

enum {
    ECHO = 1, /* replies with the request */
    REFUSE,   /* an error */
    DIE,      /* without a reply */
    DIE_NEXT, /* replies, and ends then */
    SPOIL,    /* a reply that is none */
    SLOW,     /* replies after the gate was opened */
};

#define INBOX "01HZZZZZZZZZZZZZZZZZZZZZZZ"

struct world {
    struct mail *mail;
    struct arena arena;
    atomic_uint opened, made, living, most_living, composed, hooked;
    atomic_bool refuses;
    atomic_int full; /* so many requests for a process are refused first */
    pthread_mutex_t gate;
};

struct end {
    struct world *world;
    int fd;
    bool is_composer; /* or a child of webhooks */
    bool is_hook;
    char expects[MAIL_INBOX_ID_BYTES];
};

/* ---- the other side ---- */

static bool greeting_is_right(const struct end *end, struct str frame)
{
    struct unpack in = unpack_from(frame);
    struct seal_key got, want;
    char id[MAIL_INBOX_ID_BYTES];
    struct err err;

    unpack_text(&in, id, sizeof id);
    seal_key_unpack(&in, &got);
    mail_inbox_server_key(end->world->mail, end->expects, &want);
    return unpack_done(&in, &err) && strcmp(id, end->expects) == 0 && memcmp(&got, &want, sizeof got) == 0;
}

static bool answer(const struct end *end, struct str frame)
{
    struct unpack in = unpack_from(frame);
    uint16_t op = unpack_u16(&in);
    auto_buf struct buf out = buf_make(NULL, LIMIT_MAIL_FRAME_BYTES);
    struct err err;

    if (op == DIE)
        return false;
    if (op == SLOW) {
        (void)pthread_mutex_lock(&end->world->gate);
        (void)pthread_mutex_unlock(&end->world->gate);
    }
    if (op == SPOIL) {
        buf_add(&out, STR("\x07"));
    } else if (op == REFUSE) {
        (void)err_set(&err, ERR_CONFLICT, "refused on purpose");
        pack_bool(&out, false);
        message_pack_err(&out, &err);
    } else {
        pack_bool(&out, true);
        buf_add(&out, in.rest);
    }
    return frame_write(end->fd, buf_str(&out), 0, &err) && op != DIE_NEXT;
}

/* A server that is called hangs until the gate is opened; an address that is checked is fine. */
static bool answer_hook(const struct end *end, struct str frame)
{
    auto_buf struct buf out = buf_make(NULL, 100);
    struct mail_hook hook;
    struct arena arena;
    struct err err;

    arena_init(&arena);
    assert_true(mail_hook_unpack(frame, &arena, &hook, &err));
    if (!hook.only_check) {
        atomic_fetch_add(&end->world->hooked, 1);
        (void)pthread_mutex_lock(&end->world->gate);
        (void)pthread_mutex_unlock(&end->world->gate);
    }
    pack_bool(&out, true);
    pack_u32(&out, hook.only_check ? 0 : 200);
    arena_done(&arena);
    return frame_write(end->fd, buf_str(&out), 0, &err);
}

static void *serve(void *context)
{
    struct end *end = context;
    struct err err;

    for (bool greeted = end->is_composer;; greeted = true) {
        auto_free char *frame = NULL;
        size_t len;
        if (!frame_read(end->fd, LIMIT_MAIL_FRAME_BYTES, 0, &frame, &len, &err))
            break;
        if (!greeted && !greeting_is_right(end, str_of(frame, len)))
            break;
        if (greeted && !(end->is_hook ? answer_hook : answer)(end, str_of(frame, len)))
            break;
    }
    atomic_fetch_sub(&end->world->living, 1);
    fd_close(&end->fd);
    free(end);
    return NULL;
}

static bool open_end(struct world *world, const char *inbox_id, bool is_hook, int *out_fd, struct err *err)
{
    struct end *end = NEW(struct end);
    pthread_t thread;
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    if (atomic_load(&world->refuses)) {
        fd_close(&pair[0]);
        fd_close(&pair[1]);
        free(end);
        return err_set(err, ERR_NOT_FOUND, "there is no such inbox");
    }
    *end = (struct end){ .world = world, .fd = pair[1], .is_composer = !inbox_id, .is_hook = is_hook };
    if (inbox_id)
        (void)snprintf(end->expects, sizeof end->expects, "%s", inbox_id);
    unsigned living = atomic_fetch_add(&world->living, 1) + 1;
    if (living > atomic_load(&world->most_living))
        atomic_store(&world->most_living, living);
    assert_int_equal(pthread_create(&thread, NULL, serve, end), 0);
    (void)pthread_detach(thread);
    *out_fd = pair[0];
    return true;
}

static bool open_inbox(void *context, const char *inbox_id, bool make, int *out_fd, struct err *err)
{
    struct world *world = context;

    atomic_fetch_add(&world->opened, 1);
    atomic_fetch_add(&world->made, make);
    if (atomic_load(&world->full) && atomic_fetch_sub(&world->full, 1))
        return err_set(err, ERR_LIMIT, "too many inboxes are in use at once");
    return open_end(world, inbox_id, false, out_fd, err);
}

static bool open_composer(void *context, int *out_fd, struct err *err)
{
    struct world *world = context;

    atomic_fetch_add(&world->composed, 1);
    if (atomic_load(&world->full) && atomic_fetch_sub(&world->full, 1))
        return err_set(err, ERR_LIMIT, "too many messages at once");
    return open_end(world, NULL, false, out_fd, err);
}

static bool open_hook(void *context, int *out_fd, struct err *err)
{
    return open_end(context, NULL, true, out_fd, err);
}

/* ---- tests ---- */

static int set_up(void **state)
{
    struct world *world = NEW(struct world);
    struct mail_config config = {
        .open_inbox = open_inbox, .open_composer = open_composer, .open_hook = open_hook, .context = world
    };

    seal_random_key(&config.server_secret);
    world->mail = mail_new(&config);
    arena_init(&world->arena);
    (void)pthread_mutex_init(&world->gate, NULL);
    *state = world;
    return 0;
}

static void await_living(struct world *world, unsigned count)
{
    for (int i = 0; i < 5000 && atomic_load(&world->living) != count; i++)
        (void)usleep(1000);
    assert_int_equal(atomic_load(&world->living), count);
}

static int tear_down(void **state)
{
    struct world *world = *state;

    mail_free(world->mail);
    await_living(world, 0);
    arena_done(&world->arena);
    free(world);
    return 0;
}

static bool ask(struct world *world, const char *inbox_id, uint16_t op, struct err *err)
{
    struct arena arena;
    struct unpack reply;

    arena_init(&arena);
    struct buf request = mail_request(&arena);
    pack_str(&request, str_from(inbox_id));
    bool fine = mail_call(world->mail, inbox_id, op, &request, &arena, &reply, err);
    if (fine)
        CHECK_STR(unpack_str(&reply, 100), str_from(inbox_id));
    arena_done(&arena);
    return fine;
}

static void calls_of_one_inbox_share_a_worker(void **state)
{
    struct world *world = *state;
    struct err err;

    for (int i = 0; i < 5; i++)
        assert_true(ask(world, INBOX, ECHO, &err));
    assert_int_equal(world->opened, 1);
    assert_int_equal(world->made, 0);
}

static void a_new_inbox_is_asked_for_as_new(void **state)
{
    struct world *world = *state;
    struct buf request = mail_request(&world->arena);
    struct unpack reply;
    struct err err;

    assert_true(mail_call_new(world->mail, INBOX, ECHO, &request, &world->arena, &reply, &err));
    assert_int_equal(world->made, 1);
}

static bool holds(const char *memory, size_t size, struct str text)
{
    for (size_t i = 0; i + text.len <= size; i++)
        if (memcmp(memory + i, text.at, text.len) == 0)
            return true;
    return false;
}

/* A request may have a reader's key, and the arena is that of a whole HTTP request. */
static void nothing_of_a_request_stays_in_the_arena(void **state)
{
    enum { BLOCK_BYTES = 4096 }; /* of an arena */
    struct world *world = *state;
    struct buf request = mail_request(&world->arena);
    struct arena arena;
    struct unpack reply;
    struct err err;

    for (int i = 0; i < 30; i++)
        pack_str(&request, STR("the reader's key"));
    arena_init(&arena);
    const char *block = arena_alloc(&arena, 1);
    assert_false(mail_call(world->mail, INBOX, REFUSE, &request, &arena, &reply, &err));
    assert_true(arena.used > request.len); /* so it was there */
    assert_false(holds(block, BLOCK_BYTES, STR("the reader's key")));
    assert_false(mail_call(world->mail, INBOX, DIE, &request, &arena, &reply, &err));
    assert_false(holds(block, BLOCK_BYTES, STR("the reader's key")));
    arena_done(&arena);
}

static void an_error_of_the_worker_arrives_as_it_was(void **state)
{
    struct world *world = *state;
    struct err err;

    assert_false(ask(world, INBOX, REFUSE, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_string_equal(err.message, "refused on purpose");
    assert_true(ask(world, INBOX, ECHO, &err));
    assert_int_equal(world->opened, 1); /* an error does not cost the connection */
}

static void a_worker_that_dies_during_a_call_is_unavailable_and_the_next_call_has_another(void **state)
{
    struct world *world = *state;
    struct err err;

    assert_false(ask(world, INBOX, DIE, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    assert_true(ask(world, INBOX, ECHO, &err));
    assert_int_equal(world->opened, 2);
}

static void a_worker_that_died_while_idle_is_replaced_unnoticed(void **state)
{
    struct world *world = *state;
    struct err err;

    assert_true(ask(world, INBOX, DIE_NEXT, &err));
    await_living(world, 0);
    assert_true(ask(world, INBOX, ECHO, &err));
    assert_int_equal(world->opened, 2);
}

static void a_malformed_reply_costs_the_connection(void **state)
{
    struct world *world = *state;
    struct err err;

    assert_false(ask(world, INBOX, SPOIL, &err));
    assert_true(ask(world, INBOX, ECHO, &err));
    assert_int_equal(world->opened, 2);
}

static void an_inbox_that_does_not_exist_is_not_found(void **state)
{
    struct world *world = *state;
    struct err err;

    atomic_store(&world->refuses, true);
    for (int i = 0; i < 2 * LIMIT_INBOX_WORKERS; i++) { /* its place is given back each time */
        assert_false(ask(world, INBOX, ECHO, &err));
        assert_int_equal(err.kind, ERR_NOT_FOUND);
    }
    atomic_store(&world->refuses, false);
    assert_true(ask(world, INBOX, ECHO, &err));
}

static void many_inboxes_have_few_workers(void **state)
{
    struct world *world = *state;
    char id[MAIL_INBOX_ID_BYTES];
    struct err err;

    for (int i = 0; i < 200; i++) {
        (void)snprintf(id, sizeof id, "01HZZZZZZZZZZZZZZZZZZZ%04d", i);
        assert_true(ask(world, id, ECHO, &err));
    }
    assert_int_equal(world->opened, 200);
    await_living(world, LIMIT_INBOX_WORKERS);
    /* The ones that were used last are still there, the first is not. */
    assert_true(ask(world, id, ECHO, &err));
    assert_int_equal(world->opened, 200);
    assert_true(ask(world, "01HZZZZZZZZZZZZZZZZZZZ0000", ECHO, &err));
    assert_int_equal(world->opened, 201);
}

static void idle_workers_end(void **state)
{
    struct world *world = *state;
    struct err err;

    hand_clock_start();
    hand_clock_stand();
    assert_true(ask(world, INBOX, ECHO, &err));
    hand_clock_add(LIMIT_INBOX_IDLE_MS - 1);
    mail_close_idle(world->mail);
    assert_int_equal(world->living, 1);
    hand_clock_add(1);
    mail_close_idle(world->mail);
    await_living(world, 0);
    hand_clock_end();
    assert_true(ask(world, INBOX, ECHO, &err));
    assert_int_equal(world->opened, 2);
}

struct asker {
    struct world *world;
    pthread_t thread;
    uint16_t op;
    bool fine;
    struct err err;
};

static void *run_asker(void *context)
{
    struct asker *asker = context;

    asker->fine = ask(asker->world, INBOX, asker->op, &asker->err);
    return NULL;
}

static void a_slow_inbox_takes_few_threads_and_holds_up_no_other(void **state)
{
    struct world *world = *state;
    struct asker askers[LIMIT_INBOX_TURNS + 4];
    unsigned refused = 0;
    struct err err;

    (void)pthread_mutex_lock(&world->gate);
    for (size_t i = 0; i < COUNT_OF(askers); i++) {
        askers[i] = (struct asker){ .world = world, .op = SLOW };
        assert_int_equal(pthread_create(&askers[i].thread, NULL, run_asker, &askers[i]), 0);
    }
    assert_true(ask(world, "01HZZZZZZZZZZZZZZZZZZZ0000", ECHO, &err));
    (void)usleep(50000); /* all have asked by then, or the numbers below do not fit */
    (void)pthread_mutex_unlock(&world->gate);
    for (size_t i = 0; i < COUNT_OF(askers); i++) {
        (void)pthread_join(askers[i].thread, NULL);
        refused += !askers[i].fine;
        /* It is not the inbox that is full: ERR_LIMIT would cost a sender the message. */
        assert_true(askers[i].fine || askers[i].err.kind == ERR_UNAVAILABLE);
    }
    assert_int_equal(refused, 4);
}

static void threads_that_share_inboxes_and_deaths_keep_the_count_right(void **state)
{
    struct world *world = *state;
    struct asker askers[LIMIT_INBOX_TURNS];
    struct err err;

    for (int round = 0; round < 100; round++) {
        for (size_t i = 0; i < COUNT_OF(askers); i++) {
            askers[i] = (struct asker){ .world = world, .op = i % 3 == 1 ? DIE : i % 3 == 2 ? DIE_NEXT : ECHO };
            assert_int_equal(pthread_create(&askers[i].thread, NULL, run_asker, &askers[i]), 0);
        }
        for (size_t i = 0; i < COUNT_OF(askers); i++)
            (void)pthread_join(askers[i].thread, NULL);
    }
    /* A lost place would let fewer than LIMIT_INBOX_WORKERS live. */
    for (int i = 0; i < LIMIT_INBOX_WORKERS; i++) {
        char id[MAIL_INBOX_ID_BYTES];
        (void)snprintf(id, sizeof id, "01HZZZZZZZZZZZZZZZZZZZ%04d", i);
        assert_true(ask(world, id, ECHO, &err));
    }
    await_living(world, LIMIT_INBOX_WORKERS);
}

static void a_request_that_is_too_large_is_refused_before_a_worker_starts(void **state)
{
    struct world *world = *state;
    auto_buf struct buf request = buf_make(NULL, 10);
    struct unpack reply;
    struct err err;

    buf_add(&request, STR("more than ten bytes"));
    assert_false(mail_call(world->mail, INBOX, ECHO, &request, &world->arena, &reply, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
    assert_int_equal(world->opened, 0);
}

static void a_server_without_room_for_a_worker_is_no_full_inbox(void **state)
{
    struct world *world = *state;
    struct err err;

    atomic_store(&world->full, 1);
    assert_false(ask(world, INBOX, ECHO, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    assert_true(ask(world, INBOX, ECHO, &err));
}

static void a_composer_with_too_many_children_is_asked_again(void **state)
{
    struct world *world = *state;
    uint32_t retry_s;
    auto_buf struct buf request = buf_make(NULL, 100);
    struct unpack reply;
    struct err err;

    pack_u16(&request, ECHO);
    atomic_store(&world->full, 3);
    assert_true(mail_composer_call(world->mail, INBOX, buf_str(&request), &world->arena, &reply, &retry_s, &err));
    assert_int_equal(world->composed, 4);
}

static void each_message_has_a_composer_of_its_own(void **state)
{
    struct world *world = *state;
    uint32_t retry_s;
    auto_buf struct buf request = buf_make(NULL, 100);
    struct unpack reply;
    struct err err;

    pack_u16(&request, ECHO);
    buf_add(&request, STR("draft"));
    for (int i = 0; i < 3; i++) {
        assert_true(mail_composer_call(world->mail, INBOX, buf_str(&request), &world->arena, &reply, &retry_s, &err));
        CHECK_STR(reply.rest, STR("draft"));
    }
    assert_int_equal(world->composed, 3);
    await_living(world, 0);
    buf_clear(&request);
    pack_u16(&request, DIE);
    for (int i = 0; i < 2 * LIMIT_COMPOSERS; i++) { /* each gives its place back */
        assert_false(mail_composer_call(world->mail, INBOX, buf_str(&request), &world->arena, &reply, &retry_s, &err));
        assert_int_equal(err.kind, ERR_UNAVAILABLE);
    }
}

/* ---- an inbox's part of what all share ---- */

struct composing {
    struct world *world;
    const char *inbox_id;
    pthread_t thread;
    uint16_t op;
    bool fine;
    uint32_t retry_s;
    struct err err;
    atomic_uint *refused;
};

static void *compose(void *context)
{
    struct composing *c = context;
    auto_buf struct buf request = buf_make(NULL, 100);
    struct unpack reply;
    struct arena arena;

    arena_init(&arena);
    pack_u16(&request, c->op);
    c->fine = mail_composer_call(c->world->mail, c->inbox_id, buf_str(&request), &arena, &reply, &c->retry_s, &c->err);
    if (!c->fine)
        atomic_fetch_add(c->refused, 1);
    arena_done(&arena);
    return NULL;
}

#define AWAIT(condition) \
    while (!(condition)) \
    (void)usleep(1000)

static void inboxes_with_slow_messages_leave_composers_to_others(void **state)
{
    enum { EACH = LIMIT_COMPOSERS_EACH + LIMIT_COMPOSERS_WAITING + 1 };
    static const char *const slow[] = { "01HZZZZZZZZZZZZZZZZZZZ0001", "01HZZZZZZZZZZZZZZZZZZZ0002",
                                        "01HZZZZZZZZZZZZZZZZZZZ0003" };
    struct world *world = *state;
    struct composing flood[COUNT_OF(slow) * EACH];
    atomic_uint refused = 0;
    struct composing quick = { .world = world, .inbox_id = INBOX, .op = ECHO, .refused = &refused };

    (void)pthread_mutex_lock(&world->gate);
    for (size_t i = 0; i < COUNT_OF(flood); i++) {
        flood[i] =
            (struct composing){ .world = world, .inbox_id = slow[i % COUNT_OF(slow)], .op = SLOW, .refused = &refused };
        assert_int_equal(pthread_create(&flood[i].thread, NULL, compose, &flood[i]), 0);
    }
    /* One of each inbox finds the queue full: the others compose or wait. */
    AWAIT(atomic_load(&refused) == COUNT_OF(slow));
    AWAIT(atomic_load(&world->composed) == COUNT_OF(slow) * LIMIT_COMPOSERS_EACH);
    (void)compose(&quick);
    assert_true(quick.fine);
    assert_int_equal(atomic_load(&world->composed), COUNT_OF(slow) * LIMIT_COMPOSERS_EACH + 1);
    assert_int_equal(atomic_load(&refused), COUNT_OF(slow));
    (void)pthread_mutex_unlock(&world->gate);
    for (size_t i = 0; i < COUNT_OF(flood); i++) {
        (void)pthread_join(flood[i].thread, NULL);
        assert_true(flood[i].fine || (flood[i].err.kind == ERR_LIMIT && flood[i].retry_s == 1));
    }
    assert_int_equal(atomic_load(&refused), COUNT_OF(slow));
}

struct hooking {
    struct world *world;
    char owner[MAIL_INBOX_ID_BYTES];
    pthread_t thread;
    bool fine;
};

static void *call_hook(void *context)
{
    struct hooking *h = context;
    struct mail_hook hook = { .url = STR("https://hook.example/") };
    uint32_t status;
    struct err err;

    h->fine = mail_hook_call(h->world->mail, str_from(h->owner), &hook, &status, &err) && status == 200;
    return NULL;
}

static void the_check_of_an_address_does_not_wait_for_servers_that_hang(void **state)
{
    struct world *world = *state;
    struct hooking calls[LIMIT_HOOKS];
    struct mail_hook check = { .url = STR("https://hook.example/"), .only_check = true };
    uint32_t status = 1;
    struct err err;

    (void)pthread_mutex_lock(&world->gate);
    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        calls[i] = (struct hooking){ .world = world };
        (void)snprintf(calls[i].owner, sizeof calls[i].owner, "01HZZZZZZZZZZZZZZZZZZZ%04zu", i);
        assert_int_equal(pthread_create(&calls[i].thread, NULL, call_hook, &calls[i]), 0);
    }
    AWAIT(atomic_load(&world->hooked) == COUNT_OF(calls)); /* all places for calls are taken */
    assert_true(mail_hook_call(world->mail, STR(INBOX), &check, &status, &err));
    assert_int_equal(status, 0);
    assert_true(mail_hook_call(world->mail, str_from(calls[0].owner), &check, &status, &err));
    (void)pthread_mutex_unlock(&world->gate);
    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        (void)pthread_join(calls[i].thread, NULL);
        assert_true(calls[i].fine);
    }
}

#define OFFICE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        OFFICE(calls_of_one_inbox_share_a_worker),
        OFFICE(a_new_inbox_is_asked_for_as_new),
        OFFICE(nothing_of_a_request_stays_in_the_arena),
        OFFICE(an_error_of_the_worker_arrives_as_it_was),
        OFFICE(a_worker_that_dies_during_a_call_is_unavailable_and_the_next_call_has_another),
        OFFICE(a_worker_that_died_while_idle_is_replaced_unnoticed),
        OFFICE(a_malformed_reply_costs_the_connection),
        OFFICE(an_inbox_that_does_not_exist_is_not_found),
        OFFICE(many_inboxes_have_few_workers),
        OFFICE(idle_workers_end),
        OFFICE(a_slow_inbox_takes_few_threads_and_holds_up_no_other),
        OFFICE(threads_that_share_inboxes_and_deaths_keep_the_count_right),
        OFFICE(a_request_that_is_too_large_is_refused_before_a_worker_starts),
        OFFICE(each_message_has_a_composer_of_its_own),
        OFFICE(a_server_without_room_for_a_worker_is_no_full_inbox),
        OFFICE(a_composer_with_too_many_children_is_asked_again),
        OFFICE(inboxes_with_slow_messages_leave_composers_to_others),
        OFFICE(the_check_of_an_address_does_not_wait_for_servers_that_hang),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
