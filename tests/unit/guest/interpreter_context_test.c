/* The state machine of contexts, with a real HTTP server and a fake engine. */
#include "guest/interpreter/context.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/limits.h"
#include "base/mem.h"
#include "io/pump.h"

/* ---- the fake engine: counts calls, and sends the events that a test wants ---- */

static struct engine fake; /* one at a time is enough */
static unsigned starts, runs, interrupts, frees;
static bool refuses, is_paused;
static char last_code[64];

static void fake_run(struct engine *engine, const struct engine_code *code)
{
    assert_ptr_equal(engine, &fake);
    runs++;
    (void)snprintf(last_code, sizeof last_code, "%.*s", STR_ARG(code->code));
}

static void fake_interrupt(struct engine *engine)
{
    (void)engine;
    interrupts++;
}

static void fake_pause(struct engine *engine, bool pause)
{
    (void)engine;
    is_paused = pause;
}

static void fake_free(struct engine *engine)
{
    assert_ptr_equal(engine, &fake);
    frees++;
}

static const struct engine_kind fake_kind = { fake_run, fake_interrupt, fake_pause, fake_free };

static struct engine *start(struct context *context, const struct engine_events *events, struct err *err)
{
    starts++;
    if (refuses) {
        (void)err_set(err, ERR_UNAVAILABLE, "there is no python3");
        return NULL;
    }
    fake = (struct engine){ .kind = &fake_kind, .events = events, .owner = context };
    return &fake;
}

static void ready(void)
{
    fake.events->on_ready(&fake);
}

static void accept_cell(void)
{
    fake.events->on_line(&fake, ENGINE_LINE_ACCEPTED, STR("{\"count\"}\n"));
}

static void output(const char *line)
{
    fake.events->on_line(&fake, ENGINE_LINE_OUTPUT, str_from(line));
}

static void print(const char *line)
{
    fake.events->on_line(&fake, ENGINE_LINE_PRINTED, str_from(line));
}

static void fail_cell(const char *line)
{
    fake.events->on_line(&fake, ENGINE_LINE_ERROR, str_from(line));
}

static void done(void)
{
    fake.events->on_done(&fake);
}

static void die(void)
{
    fake.events->on_died(&fake, "it was hit");
}

/* ---- clients: each request is one cell whose code is its path ---- */

enum { CLIENTS = 3 };

static struct loop *loop;
static struct http_server *server;
static struct context *context;
static struct peer clients[CLIENTS];

static void gone(struct http_exchange *ex)
{
    cell_gone(ex->owner);
}

static void drained(struct http_exchange *ex)
{
    cell_drained(ex->owner);
}

static const struct http_events cell_events = { .on_gone = gone, .on_drained = drained };

static void on_request(struct http_exchange *ex, void *unused)
{
    struct cell *cell = ARENA_NEW(&ex->arena, struct cell);
    struct err err;

    (void)unused;
    cell->ex = ex;
    cell->code.code = ex->head.path;
    ex->events = &cell_events;
    ex->owner = cell;
    http_start(ex, 200, NULL, 0, HTTP_LENGTH_UNKNOWN);
    assert_true(context_run(context, cell, &err));
}

static void ask(size_t i, const char *code)
{
    char request[128];
    int ends[2];

    tcp_pair(ends);
    clients[i] = peer_make(ends[0]);
    http_server_adopt(server, ends[1]);
    (void)snprintf(request, sizeof request, "GET /%s HTTP/1.1\r\nHost: x\r\n\r\n", code);
    peer_say(&clients[i], str_from(request));
    PUMP_UNTIL(loop, peer_heard(&clients[i], "200 OK"));
}

#define HEARD(i, text) PUMP_UNTIL(loop, peer_heard(&clients[i], text))
#define ENDED(i) HEARD(i, "end_of_execution")

static int set_up(void **state)
{
    struct http_server_config config = { .on_request = on_request };

    (void)state;
    (void)signal(SIGPIPE, SIG_IGN);
    starts = runs = interrupts = frees = 0;
    refuses = is_paused = false;
    memset(clients, 0, sizeof clients);
    loop = loop_new();
    server = http_server_new(loop, -1, &config);
    context = context_new(loop, "python", "/", start, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    if (context)
        context_remove(context);
    context = NULL;
    pump_some(loop);
    for (size_t i = 0; i < CLIENTS; i++)
        if (clients[i].heard.cap)
            peer_done(&clients[i]);
    http_server_free(server);
    pump_some(loop);
    loop_free(loop);
    return 0;
}

/* ---- cases ---- */

static void nothing_runs_before_it_is_needed(void **state)
{
    (void)state;
    pump_some(loop);
    assert_int_equal(starts, 0);
    ask(0, "one");
    assert_int_equal(starts, 1);
    assert_int_equal(runs, 0);
    ready();
    assert_int_equal(runs, 1);
    assert_string_equal(last_code, "/one");
}

static void cells_run_one_at_a_time_in_order(void **state)
{
    (void)state;
    ask(0, "one");
    ask(1, "two");
    ready();
    accept_cell();
    output("{\"first\"}\n");
    assert_int_equal(runs, 1);
    done();
    ENDED(0);
    assert_int_equal(runs, 2);
    assert_string_equal(last_code, "/two");
    accept_cell();
    done();
    ENDED(1);
    assert_true(peer_heard(&clients[0], "first"));
    assert_false(peer_heard(&clients[1], "first"));
    assert_int_equal(starts, 1);
}

static void a_client_gets_one_error_at_most(void **state)
{
    (void)state;
    ask(0, "one");
    ready();
    accept_cell();
    fail_cell("{\"error one\"}\n");
    fail_cell("{\"error two\"}\n");
    done();
    ENDED(0);
    assert_true(peer_heard(&clients[0], "error one"));
    assert_false(peer_heard(&clients[0], "error two"));
}

static void output_between_cells_comes_with_the_next_cell(void **state)
{
    (void)state;
    ask(0, "one");
    ready();
    accept_cell();
    done();
    ENDED(0);
    print("{\"late\"}\n");
    output("{\"a result of no cell\"}\n");
    ask(1, "two");
    accept_cell();
    HEARD(1, "late");
    assert_false(peer_heard(&clients[0], "late"));
    assert_false(peer_heard(&clients[1], "of no cell"));
}

static void a_disconnect_interrupts_the_cell(void **state)
{
    (void)state;
    ask(0, "one");
    ready();
    accept_cell();
    peer_close(&clients[0]);
    PUMP_UNTIL(loop, interrupts == 1);
    output("{\"nobody hears this\"}\n");
    ask(1, "two");
    assert_int_equal(runs, 1);
    done();
    assert_int_equal(runs, 2);
    accept_cell();
    done();
    ENDED(1);
    assert_false(peer_heard(&clients[1], "nobody"));
}

static void a_disconnect_removes_a_waiting_cell(void **state)
{
    (void)state;
    ask(0, "one");
    ask(1, "two");
    ask(2, "three");
    ready();
    peer_close(&clients[1]);
    pump_some(loop);
    accept_cell();
    done();
    assert_string_equal(last_code, "/three");
    assert_int_equal(interrupts, 0);
}

static void a_cell_that_does_not_stop_is_killed_and_the_next_gets_a_note(void **state)
{
    (void)state;
    ask(0, "one");
    ready();
    accept_cell();
    peer_close(&clients[0]);
    PUMP_UNTIL(loop, frees == 1);
    assert_int_equal(interrupts, 2);
    ask(1, "two");
    assert_int_equal(starts, 2);
    ready();
    accept_cell();
    HEARD(1, "variables of this context are gone");
    done();
    ENDED(1);
}

static void a_death_fails_only_the_running_cell(void **state)
{
    (void)state;
    ask(0, "one");
    ask(1, "two");
    ready();
    accept_cell();
    die();
    ENDED(0);
    assert_true(peer_heard(&clients[0], "ContextRestarting"));
    assert_true(peer_heard(&clients[0], "it was hit"));
    assert_int_equal(starts, 2);
    assert_int_equal(frees, 1);
    ready();
    assert_string_equal(last_code, "/two");
    accept_cell();
    done();
    ENDED(1);
    assert_false(peer_heard(&clients[1], "error"));
}

static void a_death_after_an_error_loses_no_output(void **state)
{
    (void)state;
    ask(0, "one");
    ready();
    accept_cell();
    fail_cell("{\"error one\"}\n");
    output("{\"last words\"}\n");
    die();
    ENDED(0);
    assert_true(peer_heard(&clients[0], "error one"));
    assert_true(peer_heard(&clients[0], "last words"));
    assert_false(peer_heard(&clients[0], "ContextRestarting"));
    ask(1, "two");
    ready();
    accept_cell();
    HEARD(1, "it was hit");
}

static void a_cell_that_was_never_accepted_runs_again_but_not_for_ever(void **state)
{
    (void)state;
    ask(0, "one");
    for (int i = 0; i < 3; i++) {
        ready();
        die();
    }
    ENDED(0);
    assert_true(peer_heard(&clients[0], "ContextRestarting"));
    assert_int_equal(runs, 3);
}

static void a_death_before_a_cell_was_accepted_is_in_its_notice(void **state)
{
    (void)state;
    ask(0, "one");
    ready();
    die();
    assert_int_equal(starts, 2);
    ready();
    accept_cell();
    HEARD(0, "it was hit");
    assert_false(peer_heard(&clients[0], "ContextRestarting"));
}

static void a_death_between_cells_is_in_the_next_cells_notice(void **state)
{
    (void)state;
    ask(0, "one");
    ready();
    accept_cell();
    done();
    die();
    ask(1, "two");
    ready();
    accept_cell();
    HEARD(1, "it was hit");
}

static void a_failed_start_gives_the_reason_and_the_next_cell_tries_again(void **state)
{
    (void)state;
    refuses = true;
    ask(0, "one");
    ENDED(0);
    assert_true(peer_heard(&clients[0], "there is no python3"));
    refuses = false;
    ask(1, "two");
    assert_int_equal(starts, 2);
    for (unsigned again = 3; again <= 6; again++) {
        die(); /* the first few are tried again */
        PUMP_UNTIL(loop, starts == again);
    }
    die();
    ENDED(1);
    assert_true(peer_heard(&clients[1], "does not start: it was hit"));
}

static void a_restart_fails_the_running_cell_and_keeps_waiting_ones(void **state)
{
    (void)state;
    ask(0, "one");
    ask(1, "two");
    ready();
    accept_cell();
    context_restart(context);
    ENDED(0);
    assert_true(peer_heard(&clients[0], "UnexpectedEndOfExecution"));
    PUMP_UNTIL(loop, starts == 2);
    ready();
    assert_string_equal(last_code, "/two");
}

static void removing_a_context_ends_all_its_cells(void **state)
{
    (void)state;
    ask(0, "one");
    ask(1, "two");
    ready();
    accept_cell();
    context_remove(take_ptr(&context));
    ENDED(0);
    ENDED(1);
    assert_true(peer_heard(&clients[1], "UnexpectedEndOfExecution"));
    assert_int_equal(frees, 1);
}

static void a_slow_client_makes_the_interpreter_wait(void **state)
{
    (void)state;
    static char line[64 * 1024];
    memset(line, 'x', sizeof line - 1);
    line[sizeof line - 2] = '\n';
    ask(0, "one");
    ready();
    accept_cell();
    for (int i = 0; i < 2000 && !is_paused; i++) {
        output(line);
        pump_turn(loop);
    }
    assert_true(is_paused);
    PUMP_UNTIL(loop, peer_listen(&clients[0]) && !is_paused);
    done();
    ENDED(0);
}

static void unexpected_events_change_nothing(void **state)
{
    (void)state;
    ask(0, "one");
    done();
    ready();
    ready();
    accept_cell();
    accept_cell();
    done();
    done();
    ENDED(0);
    assert_int_equal(runs, 1);
}

int main(void)
{
#define CONTEXT_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest cases[] = {
        CONTEXT_CASE(nothing_runs_before_it_is_needed),
        CONTEXT_CASE(cells_run_one_at_a_time_in_order),
        CONTEXT_CASE(a_client_gets_one_error_at_most),
        CONTEXT_CASE(output_between_cells_comes_with_the_next_cell),
        CONTEXT_CASE(a_disconnect_interrupts_the_cell),
        CONTEXT_CASE(a_disconnect_removes_a_waiting_cell),
        CONTEXT_CASE(a_cell_that_does_not_stop_is_killed_and_the_next_gets_a_note),
        CONTEXT_CASE(a_death_fails_only_the_running_cell),
        CONTEXT_CASE(a_death_after_an_error_loses_no_output),
        CONTEXT_CASE(a_cell_that_was_never_accepted_runs_again_but_not_for_ever),
        CONTEXT_CASE(a_death_before_a_cell_was_accepted_is_in_its_notice),
        CONTEXT_CASE(a_death_between_cells_is_in_the_next_cells_notice),
        CONTEXT_CASE(a_failed_start_gives_the_reason_and_the_next_cell_tries_again),
        CONTEXT_CASE(a_restart_fails_the_running_cell_and_keeps_waiting_ones),
        CONTEXT_CASE(removing_a_context_ends_all_its_cells),
        CONTEXT_CASE(a_slow_client_makes_the_interpreter_wait),
        CONTEXT_CASE(unexpected_events_change_nothing),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
