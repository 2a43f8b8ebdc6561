/*
 * How it works: a state machine that is moved by three things: cells that arrive or lose their client, events of the
 * engine, and timers. step() starts what can be started now. Lines of one turn of the loop are gathered in `out` and
 * sent together.
 */
#include "guest/interpreter/context.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "guest/interpreter/limits.h"
#include "guest/interpreter/line.h"

enum state {
    COLD,         /* no interpreter; one is started for the next cell */
    STARTING,     /* the interpreter is starting */
    IDLE,         /* the interpreter waits for a cell */
    BUSY,         /* runs a cell whose client is connected */
    INTERRUPTING, /* runs a cell whose client has disconnected */
    REMOVED,
    STATE_COUNT,
};

static const unsigned may_become[STATE_COUNT] = {
    [COLD] = BIT(STARTING) | BIT(REMOVED),
    [STARTING] = BIT(IDLE) | BIT(COLD) | BIT(REMOVED),
    [IDLE] = BIT(BUSY) | BIT(COLD) | BIT(REMOVED),
    [BUSY] = BIT(IDLE) | BIT(INTERRUPTING) | BIT(COLD) | BIT(REMOVED),
    [INTERRUPTING] = BIT(IDLE) | BIT(COLD) | BIT(REMOVED),
};

static const char *const state_name[STATE_COUNT] = { "cold", "starting", "idle", "busy", "interrupting", "removed" };

enum {
    KEEPALIVE_MS = 5000,
    INTERRUPT_AGAIN_MS = 1000, /* the cell may have caught the first one */
    INTERRUPT_KILL_MS = 3000,  /* after the first interrupt: the cell does not stop, so it is killed */
    ATTEMPTS_MAX = 3,          /* to have one cell accepted, each by a new interpreter */
    HELD_BYTES = 64 * 1024,    /* printed between cells; the next cell shows it */
    WRITE_BYTES = 4 << 20,     /* gathered in one turn of the loop, then sent at once */
};

/*
 * Pauses before a start is tried again. A start may fail because the zygote has just died, a Jupyter kernel does not
 * answer, or a fork bomb that is being killed still uses up all processes.
 */
static const unsigned start_again_ms[] = { 0, 250, 1000, 2000 };

struct context {
    struct loop *loop;
    char id[37];
    char *language, *cwd;
    void *owner;
    context_start_fn *start;
    enum state state;
    struct engine *engine; /* NULL when cold */
    struct cell *cells;    /* the first one runs when busy */
    struct cell **cells_end;
    size_t cell_count;
    struct context_waiter *waiters;
    struct buf out;  /* for the client of the cell that runs */
    struct buf held; /* printed while no cell ran */
    struct timer flush, patience, wake;
    bool interrupted_twice, is_paused;
    unsigned failed_starts; /* in a row */
    char notice[256];       /* for the next cell's stderr: why the variables are gone */
};

static const struct engine_events events;

struct context *context_new(struct loop *loop, const char *language, const char *cwd, context_start_fn *start,
                            void *owner)
{
    struct context *c = NEW(struct context);

    c->loop = loop;
    random_uuid(c->id);
    c->language = mem_copy_text(language);
    c->cwd = mem_copy_text(cwd);
    c->start = start;
    c->owner = owner;
    c->cells_end = &c->cells;
    c->out = buf_make(NULL, WRITE_BYTES + LIMIT_FRAME_BYTES);
    c->held = buf_make(NULL, HELD_BYTES);
    return c;
}

const char *context_id(const struct context *c)
{
    return c->id;
}

const char *context_language(const struct context *c)
{
    return c->language;
}

const char *context_cwd(const struct context *c)
{
    return c->cwd;
}

void *context_owner(const struct context *c)
{
    return c->owner;
}

static void enter(struct context *c, enum state next)
{
    if (!(may_become[c->state] & BIT(next)))
        log_die("context %s: cannot go from %s to %s", c->id, state_name[c->state], state_name[next]);
    c->state = next;
}

/* ---- output to the client ---- */

static struct cell *running(struct context *c)
{
    return c->state == BUSY ? c->cells : NULL;
}

static void on_keepalive(struct timer *timer)
{
    struct cell *cell = container_of(timer, struct cell, keepalive);

    if (!http_is_full(cell->ex))
        http_write(cell->ex, LINE_KEEPALIVE);
    timer_set(&cell->keepalive, cell->context->loop, KEEPALIVE_MS, on_keepalive);
}

static void flush(struct context *c)
{
    struct cell *cell = running(c);

    timer_clear(&c->flush);
    if (cell && c->out.len) {
        http_write(cell->ex, buf_str(&c->out));
        timer_set(&cell->keepalive, c->loop, KEEPALIVE_MS, on_keepalive);
        bool is_full = http_is_full(cell->ex);
        if (is_full != c->is_paused) {
            c->is_paused = is_full;
            engine_pause(c->engine, is_full);
        }
    }
    if (c->out.len > HELD_BYTES) /* return a large buffer's memory at once */
        buf_done(&c->out), c->out = buf_make(NULL, WRITE_BYTES + LIMIT_FRAME_BYTES);
    else
        buf_clear(&c->out);
}

static void on_flush(struct timer *timer)
{
    flush(container_of(timer, struct context, flush));
}

/* Lines of one turn of the loop are sent together. */
static void add_line(struct context *c, struct str line)
{
    buf_add(&c->out, line);
    if (c->out.len > WRITE_BYTES)
        flush(c);
    else if (!timer_is_set(&c->flush))
        timer_set(&c->flush, c->loop, 0, on_flush);
}

static void add_error(struct context *c, struct cell *cell, struct str name, const char *value)
{
    auto_buf struct buf line = buf_make(NULL, LIMIT_API_BODY_BYTES);

    if (cell->has_error)
        return;
    cell->has_error = true;
    line_add_error(&line, name, str_from(value), STR(""));
    if (cell == running(c))
        add_line(c, buf_str(&line));
    else
        http_write(cell->ex, buf_str(&line));
}

/* The first cell of the queue has ended. */
static void pop_cell(struct context *c)
{
    struct cell *cell = c->cells;

    flush(c);
    c->cells = cell->next;
    if (!c->cells)
        c->cells_end = &c->cells;
    c->cell_count--;
    timer_clear(&cell->keepalive);
    cell->context = NULL;
    http_write(cell->ex, LINE_END);
    http_end(cell->ex);
}

static void fail_cells(struct context *c, struct str name, const char *value)
{
    while (c->cells) {
        add_error(c, c->cells, name, value);
        pop_cell(c);
    }
}

/* ---- the state machine ---- */

static void step(struct context *c);

static void call_waiters(struct context *c, const struct err *err)
{
    while (c->waiters) {
        struct context_waiter *waiter = c->waiters;
        c->waiters = waiter->next;
        waiter->context = NULL;
        waiter->done(waiter, err);
    }
}

static void drop_engine(struct context *c)
{
    timer_clear(&c->patience);
    timer_clear(&c->flush);
    buf_clear(&c->out);
    engine_free(take_ptr(&c->engine));
    c->is_paused = false;
}

/* There is no interpreter: fail everything that waits for one. */
static void give_up(struct context *c, const struct err *err)
{
    drop_engine(c);
    enter(c, COLD);
    c->failed_starts = 0;
    fail_cells(c, STR("ContextStartFailed"), err->message);
    call_waiters(c, err);
}

static void start_engine(struct context *c)
{
    struct err err;

    enter(c, STARTING);
    c->engine = c->start(c, &events, &err);
    if (!c->engine)
        give_up(c, &err);
}

static void run_next(struct context *c)
{
    struct cell *cell = c->cells;

    enter(c, BUSY);
    cell->attempts++;
    engine_run(c->engine, &cell->code);
}

/* Starts what can be started now. */
static void step(struct context *c)
{
    if (c->state == COLD && (c->cells || c->waiters))
        start_engine(c);
    else if (c->state == IDLE && c->cells)
        run_next(c);
}

static void on_wake(struct timer *timer)
{
    step(container_of(timer, struct context, wake));
}

/* step() later in this turn, not from inside an event or a request. */
static void step_soon(struct context *c)
{
    timer_set(&c->wake, c->loop, 0, on_wake);
}

static void on_ready(struct engine *engine)
{
    struct context *c = engine->owner;

    if (c->state != STARTING)
        return;
    enter(c, IDLE);
    c->failed_starts = 0;
    call_waiters(c, NULL);
    step(c);
}

/* The notice and what was printed between cells come right after the count, before the cell's own output. */
static void accept_cell(struct context *c, struct cell *cell, struct str line)
{
    cell->was_accepted = true;
    add_line(c, line);
    if (c->notice[0]) {
        auto_buf struct buf text = buf_make(NULL, LIMIT_API_BODY_BYTES);
        line_add_stream(&text, LINE_STDERR, str_from(c->notice), clock_wall_us());
        add_line(c, buf_str(&text));
        c->notice[0] = '\0';
    }
    if (c->held.len)
        add_line(c, buf_str(&c->held));
    buf_clear(&c->held);
}

/* False when the line is above the cap. The first such line is replaced by a note. */
static bool is_within_cap(struct context *c, struct cell *cell, enum engine_line kind, size_t len)
{
    static const char note[] = "\n[this cell has said more than 128 MiB: the rest was left out]\n";
    uint64_t before = cell->sent_bytes[kind];

    static_assert(LIMIT_CELL_BYTES >> 20 == 128, "the note names the limit");
    cell->sent_bytes[kind] += len;
    if (cell->sent_bytes[kind] <= LIMIT_CELL_BYTES)
        return true;
    if (before <= LIMIT_CELL_BYTES) {
        auto_buf struct buf text = buf_make(NULL, LIMIT_API_BODY_BYTES);
        line_add_stream(&text, LINE_STDERR, str_from(note), clock_wall_us());
        add_line(c, buf_str(&text));
    }
    return false;
}

static void on_line(struct engine *engine, enum engine_line kind, struct str line)
{
    struct context *c = engine->owner;
    struct cell *cell = running(c);

    if (c->state == INTERRUPTING)
        return; /* the client has disconnected */
    if (cell && kind == ENGINE_LINE_ACCEPTED && !cell->was_accepted) {
        accept_cell(c, cell, line);
    } else if (cell && cell->was_accepted) {
        if (kind == ENGINE_LINE_ERROR && cell->has_error)
            return;
        cell->has_error |= kind == ENGINE_LINE_ERROR;
        if (is_within_cap(c, cell, kind, line.len))
            add_line(c, line);
    } else if (kind == ENGINE_LINE_PRINTED && c->held.len + line.len <= HELD_BYTES) {
        buf_add(&c->held, line);
    }
}

static void on_done(struct engine *engine)
{
    struct context *c = engine->owner;

    if (c->state == BUSY) {
        pop_cell(c);
    } else if (c->state != INTERRUPTING) {
        return;
    }
    timer_clear(&c->patience);
    enter(c, IDLE);
    if (c->is_paused) {
        c->is_paused = false;
        engine_pause(c->engine, false);
    }
    step(c);
}

static void on_died(struct engine *engine, const char *why)
{
    struct context *c = engine->owner;
    char text[200];
    struct err err;

    if (c->state == STARTING && c->failed_starts < COUNT_OF(start_again_ms)) {
        drop_engine(c);
        enter(c, COLD);
        timer_set(&c->wake, c->loop, start_again_ms[c->failed_starts++], on_wake);
        return;
    }
    if (c->state == STARTING) {
        (void)err_set(&err, ERR_UNAVAILABLE, "the %s interpreter does not start: %s", c->language, why);
        give_up(c, &err);
        return;
    }
    struct cell *cell = running(c);
    bool again = cell && !cell->was_accepted && cell->attempts < ATTEMPTS_MAX;
    bool is_reported =
        cell && !again && !cell->has_error; /* as this cell's error; otherwise in the next cell's notice */
    (void)snprintf(text, sizeof text, "Context was restarted: %s", why);
    if (cell && !again) {
        add_error(c, cell, STR("ContextRestarting"), text);
        pop_cell(c);
    }
    if (!is_reported && strcmp(why, "it ended with status 0") != 0)
        (void)snprintf(c->notice, sizeof c->notice,
                       "The interpreter of this context has died and was restarted: %s. Its variables are gone.\n",
                       why);
    drop_engine(c);
    enter(c, COLD);
    step(c);
}

static const struct engine_events events = {
    .on_ready = on_ready, .on_line = on_line, .on_done = on_done, .on_died = on_died
};

/* ---- interrupts ---- */

static void on_patience(struct timer *timer)
{
    struct context *c = container_of(timer, struct context, patience);

    if (!c->interrupted_twice) {
        c->interrupted_twice = true;
        engine_interrupt(c->engine);
        timer_set(&c->patience, c->loop, INTERRUPT_KILL_MS - INTERRUPT_AGAIN_MS, on_patience);
        return;
    }
    (void)snprintf(
        c->notice, sizeof c->notice,
        "A cell whose client had gone did not react to an interrupt: its interpreter was killed and restarted. "
        "The variables of this context are gone.\n");
    drop_engine(c);
    enter(c, COLD);
    step(c);
}

static void interrupt(struct context *c)
{
    enter(c, INTERRUPTING);
    timer_clear(&c->flush);
    buf_clear(&c->out);
    if (c->is_paused) {
        c->is_paused = false;
        engine_pause(c->engine, false);
    }
    c->interrupted_twice = false;
    engine_interrupt(c->engine);
    timer_set(&c->patience, c->loop, INTERRUPT_AGAIN_MS, on_patience);
}

/* ---- cells ---- */

bool context_run(struct context *c, struct cell *cell, struct err *err)
{
    if (c->cell_count >= LIMIT_CELLS)
        return err_set(err, ERR_LIMIT, "%d executions wait for this context already", LIMIT_CELLS);
    cell->context = c;
    *c->cells_end = cell;
    c->cells_end = &cell->next;
    c->cell_count++;
    timer_set(&cell->keepalive, c->loop, KEEPALIVE_MS, on_keepalive);
    step(c);
    return true;
}

void cell_gone(struct cell *cell)
{
    struct context *c = cell->context;

    timer_clear(&cell->keepalive);
    if (!c)
        return;
    struct cell **at = &c->cells;
    while (*at != cell)
        at = &(*at)->next;
    bool was_running = cell == running(c);
    *at = cell->next;
    if (!*at)
        c->cells_end = at;
    c->cell_count--;
    cell->context = NULL;
    if (was_running)
        interrupt(c);
}

void cell_drained(struct cell *cell)
{
    struct context *c = cell->context;

    if (c && cell == running(c) && c->is_paused) {
        c->is_paused = false;
        engine_pause(c->engine, false);
    }
}

/* ---- waiting, restart, removal ---- */

void context_await(struct context *c, struct context_waiter *waiter)
{
    waiter->context = c;
    waiter->next = c->waiters;
    c->waiters = waiter;
    if (c->state == IDLE || c->state == BUSY)
        call_waiters(c, NULL);
    else
        step_soon(c);
}

void context_await_cancel(struct context_waiter *waiter)
{
    struct context *c = waiter->context;

    if (!c)
        return;
    struct context_waiter **at = &c->waiters;
    while (*at != waiter)
        at = &(*at)->next;
    *at = waiter->next;
    waiter->context = NULL;
}

/* The running cell loses its interpreter. */
static void cut_running(struct context *c)
{
    struct cell *cell = running(c);

    if (!cell)
        return;
    add_error(c, cell, STR("UnexpectedEndOfExecution"),
              "Connection to the execution was closed before the execution was finished");
    pop_cell(c);
}

void context_restart(struct context *c)
{
    cut_running(c);
    drop_engine(c);
    if (c->state != COLD)
        enter(c, COLD);
    c->notice[0] = '\0';
    buf_clear(&c->held);
    step_soon(c);
}

static void dispose(void *object)
{
    struct context *c = object;

    buf_done(&c->out);
    buf_done(&c->held);
    free(c->language);
    free(c->cwd);
    free(c);
}

void context_remove(struct context *c)
{
    struct err err;

    fail_cells(c, STR("UnexpectedEndOfExecution"),
               "Connection to the execution was closed before the execution was finished");
    drop_engine(c);
    enter(c, REMOVED);
    (void)err_set(&err, ERR_NOT_FOUND, "Context %s was removed", c->id);
    call_waiters(c, &err);
    timer_clear(&c->wake);
    loop_retire(c->loop, c, dispose);
}
