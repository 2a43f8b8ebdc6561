#include "fake.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "io/dial.h"

struct fake_box {
    struct fake_box *next;
    struct fake *fake;
    struct plan plan;
    unsigned looks;  /* at its stats */
    int link_fd;     /* guestd's end, or -1 */
    int host_fd;     /* a copy of the other one, or -1 */
    bool dying;      /* stopped, and stuck in its end */
    bool has_thread; /* which serves link_fd */
    pthread_t thread;
};

struct fake {
    struct driver driver;
    struct loop *loop;
    struct fake_config config;
    pthread_mutex_t lock;
    struct fake_box *boxes; /* alive */
    struct fake_box *ended; /* to be joined by free() */
    unsigned fail, starts;
};

static struct fake *fake_of(struct driver *driver)
{
    return container_of(driver, struct fake, driver);
}

static void lock(struct fake *fake)
{
    (void)pthread_mutex_lock(&fake->lock);
}

static void unlock(struct fake *fake)
{
    (void)pthread_mutex_unlock(&fake->lock);
}

static unsigned failing(struct fake *fake, unsigned where)
{
    lock(fake);
    unsigned found = fake->fail & where;
    unlock(fake);
    return found;
}

/* ---- the thread that plays guestd ---- */

static bool read_whole(int fd, void *room, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = read(fd, (char *)room + done, size - done);
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

/* One message in, one answer out. */
static bool answer_one(struct fake_box *box)
{
    unsigned char header[GUESTLINK_HEADER_BYTES];
    struct guestlink_message message;
    struct err err;
    uint32_t length;

    if (!read_whole(box->link_fd, header, sizeof header) || !guestlink_body_length(header, &length, &err))
        return false;
    auto_free char *body = mem_new(length);
    auto_buf struct buf out = buf_make(NULL, LIMIT_GUESTLINK_BYTES);
    struct arena arena;
    arena_init(&arena);
    bool fine = read_whole(box->link_fd, body, length);
    if (fine) {
        bool pleased = guestlink_read(str_of(body, length), &arena, &message, &err);
        if (pleased && message.type == GUESTLINK_SETUP && box->fake->config.setup)
            pleased = box->fake->config.setup(box->fake->config.context, &box->plan, &message.setup, &err);
        if (pleased)
            guestlink_write_simple(&out, GUESTLINK_OK);
        else
            guestlink_write_error(&out, &err);
        fine = send(box->link_fd, out.data, out.len, MSG_NOSIGNAL) == (ssize_t)out.len;
    }
    arena_done(&arena);
    return fine;
}

static void *play_guestd(void *context)
{
    struct fake_box *box = context;

    while (answer_one(box))
        ;
    return NULL;
}

/* ---- the driver ---- */

static struct fake_box *find(struct fake *fake, const char *id)
{
    for (struct fake_box *box = fake->boxes; box; box = box->next)
        if (!strcmp(box->plan.id, id))
            return box;
    return NULL;
}

static void run_guest(struct fake *fake, struct fake_box *box, unsigned fail)
{
    if (fail & FAKE_FAIL_LINK) {
        fd_close(&box->link_fd);
        return;
    }
    if (fail & FAKE_SILENT_LINK)
        return;
    if (fake->config.guest) {
        fake->config.guest(fake->config.context, &box->plan, take_fd(&box->link_fd));
        return;
    }
    box->has_thread = pthread_create(&box->thread, NULL, play_guestd, box) == 0;
}

static bool fake_start(struct driver *driver, const struct plan *plan, struct started *out, struct err *err)
{
    struct fake *fake = fake_of(driver);
    int pair[2];

    lock(fake);
    fake->starts++;
    unsigned fail = fake->fail;
    bool taken = find(fake, plan->id) != NULL;
    unlock(fake);
    if (!plan_check(plan, err))
        return err_wrap(err, "plan");
    if (fail & FAKE_FAIL_START)
        return err_set(err, ERR_INTERNAL, "failed on purpose");
    if (taken)
        return err_set(err, ERR_CONFLICT, "there is a sandbox %s already", plan->id);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(err, "socketpair");
    struct fake_box *box = NEW(struct fake_box);
    box->fake = fake;
    box->plan = *plan;
    box->link_fd = pair[1];
    box->host_fd = fcntl(pair[0], F_DUPFD_CLOEXEC, 3);
    lock(fake);
    box->next = fake->boxes;
    fake->boxes = box;
    run_guest(fake, box, fail);
    unlock(fake);
    out->guestlink_fd = pair[0];
    return true;
}

struct exit_notice {
    struct loop_task task;
    struct fake *fake;
    char id[LIMIT_ID_BYTES];
};

static void tell_exit(struct loop_task *task)
{
    struct exit_notice *notice = container_of(task, struct exit_notice, task);
    struct driver *driver = &notice->fake->driver;

    if (driver->exited)
        driver->exited(driver->exited_context, notice->id, EXIT_PLAIN);
    free(notice);
}

/* True if it was alive. */
static bool end(struct fake *fake, const char *id)
{
    struct fake_box *box = NULL;

    lock(fake);
    for (struct fake_box **at = &fake->boxes; *at; at = &(*at)->next) {
        if (!strcmp((*at)->plan.id, id)) {
            box = *at;
            *at = box->next;
            box->next = fake->ended;
            fake->ended = box;
            break;
        }
    }
    if (box && box->link_fd >= 0)
        (void)shutdown(box->link_fd, SHUT_RDWR); /* the thread sees end-of-file, and so does the host's side */
    unlock(fake);
    if (!box)
        return false;
    struct exit_notice *notice = NEW(struct exit_notice);
    notice->task.fn = tell_exit;
    notice->fake = fake;
    (void)snprintf(notice->id, sizeof notice->id, "%s", id);
    loop_post(fake->loop, &notice->task);
    return true;
}

/* True if it is dead and does not go. */
static bool stick(struct fake *fake, const char *id)
{
    lock(fake);
    struct fake_box *box = find(fake, id);
    if (box && fake->fail & FAKE_STUCK_STOP)
        box->dying = true;
    bool stuck = box && box->dying;
    unlock(fake);
    return stuck;
}

static bool kill_box(struct fake *fake, const char *id, bool *out_gone, struct err *err)
{
    if (failing(fake, FAKE_FAIL_STOP))
        return err_set(err, ERR_INTERNAL, "failed on purpose");
    *out_gone = !stick(fake, id);
    if (*out_gone)
        (void)end(fake, id); /* gone already is fine */
    return true;
}

/* One that is stuck is said to be so at once: whoever tests waiting has a clock of its own. */
static void fake_stop(struct driver *driver, const char *id, uint32_t patience_ms, driver_stopped_fn *done,
                      void *context)
{
    bool gone = false;
    struct err err;

    (void)patience_ms;
    bool killed = kill_box(fake_of(driver), id, &gone, &err);
    done(context, gone, killed ? NULL : &err);
}

static bool fake_stop_wait(struct driver *driver, const char *id, uint32_t patience_ms, bool *out_gone, struct err *err)
{
    (void)patience_ms;
    return kill_box(fake_of(driver), id, out_gone, err);
}

static bool fake_list(struct driver *driver, struct held **out_held, uint32_t *out_count, struct err *err)
{
    struct fake *fake = fake_of(driver);
    struct held *held = NULL;
    uint32_t count = 0;

    if (failing(fake, FAKE_FAIL_LIST))
        return err_set(err, ERR_INTERNAL, "failed on purpose");
    lock(fake);
    for (struct fake_box *box = fake->boxes; box; box = box->next) {
        if (box->dying)
            continue;
        held = mem_grow(held, (count + 1) * sizeof *held);
        memcpy(held[count++].id, box->plan.id, sizeof box->plan.id);
    }
    unlock(fake);
    *out_held = held;
    *out_count = count;
    return true;
}

static bool fake_link(struct driver *driver, const char *id, int *out_guestlink_fd, struct err *err)
{
    struct fake *fake = fake_of(driver);

    lock(fake);
    struct fake_box *box = find(fake, id);
    int fd = box && box->host_fd >= 0 ? fcntl(box->host_fd, F_DUPFD_CLOEXEC, 3) : -1;
    unlock(fake);
    if (fd < 0)
        return err_set(err, ERR_NOT_FOUND, "there is no connection to sandbox %s", id);
    *out_guestlink_fd = fd;
    return true;
}

/* Every look finds it a tenth of a second of CPU older. */
static bool fake_stats(struct driver *driver, const struct held *which, uint32_t count, struct stats *out,
                       uint32_t *out_count, struct err *err)
{
    struct fake *fake = fake_of(driver);
    uint32_t found = 0;

    if (failing(fake, FAKE_FAIL_STATS))
        return err_set(err, ERR_INTERNAL, "failed on purpose");
    lock(fake);
    for (uint32_t i = 0; i < count; i++) {
        struct fake_box *box = find(fake, which[i].id);
        if (!box)
            continue;
        box->looks++;
        out[found] = (struct stats){
            .cpu_us = box->looks * UINT64_C(100000),
            .memory_used_bytes = 1 << 20,
            .memory_cache_bytes = 2 << 20,
            .memory_limit_bytes = box->plan.memory_bytes,
            .disk_used_bytes = 3 << 20,
            .disk_total_bytes = UINT64_C(5) << 30,
        };
        memcpy(out[found++].id, box->plan.id, sizeof box->plan.id);
    }
    unlock(fake);
    *out_count = found;
    return true;
}

struct dialing {
    struct loop_task task;
    driver_socket_fn *done;
    void *context;
    int fd;
    struct err err;
};

static void tell_dialed(struct loop_task *task)
{
    struct dialing *dialing = container_of(task, struct dialing, task);

    dialing->done(dialing->context, dialing->fd, dialing->fd < 0 ? &dialing->err : NULL);
    free(dialing);
}

/* Answered in a later turn, as keeper's answer would be. */
static void fake_dial(struct driver *driver, const char *id, uint16_t port, driver_socket_fn *done, void *context)
{
    struct fake *fake = fake_of(driver);
    struct dialing *dialing = NEW(struct dialing);

    *dialing = (struct dialing){ .task.fn = tell_dialed, .done = done, .context = context, .fd = -1 };
    lock(fake);
    bool alive = find(fake, id) != NULL;
    unlock(fake);
    if (failing(fake, FAKE_FAIL_DIAL))
        (void)err_set(&dialing->err, ERR_INTERNAL, "failed on purpose");
    else if (!alive)
        (void)err_set(&dialing->err, ERR_NOT_FOUND, "there is no sandbox %s", id);
    else if ((dialing->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) < 0)
        (void)err_sys(&dialing->err, "socket");
    else if (!dial_loopback(dialing->fd, port, &dialing->err))
        fd_close(&dialing->fd);
    loop_post(fake->loop, &dialing->task);
}

/* Answered at once, as a driver of keeper's own would. */
static void fake_listen(struct driver *driver, const char *id, const struct listen_at *at, driver_socket_fn *done,
                        void *context)
{
    struct fake *fake = fake_of(driver);
    const struct sockaddr_in address = { .sin_family = AF_INET,
                                         .sin_port = htons(at->port),
                                         .sin_addr.s_addr = htonl(at->address) };
    auto_close int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct err err = { 0 };

    lock(fake);
    bool alive = find(fake, id) != NULL;
    unlock(fake);
    if (!alive)
        (void)err_set(&err, ERR_NOT_FOUND, "there is no sandbox %s", id);
    else if (bind(fd, (const struct sockaddr *)&address, sizeof address) < 0 || listen(fd, at->backlog) < 0)
        (void)err_sys(&err, "listen on port %u", at->port);
    done(context, err.kind ? -1 : take_fd(&fd), err.kind ? &err : NULL);
}

static void free_boxes(struct fake_box *box)
{
    while (box) {
        struct fake_box *next = box->next;
        if (box->link_fd >= 0)
            (void)shutdown(box->link_fd, SHUT_RDWR);
        if (box->has_thread)
            (void)pthread_join(box->thread, NULL);
        fd_close(&box->link_fd);
        fd_close(&box->host_fd);
        free(box);
        box = next;
    }
}

static void fake_free(struct driver *driver)
{
    struct fake *fake = fake_of(driver);

    free_boxes(fake->boxes);
    free_boxes(fake->ended);
    (void)pthread_mutex_destroy(&fake->lock);
    free(fake);
}

static const struct driver_ops fake_ops = {
    .name = "fake",
    .start = fake_start,
    .stop = fake_stop,
    .stop_wait = fake_stop_wait,
    .list = fake_list,
    .link = fake_link,
    .stats = fake_stats,
    .dial = fake_dial,
    .listen = fake_listen,
    .free = fake_free,
};

struct driver *fake_driver_new(struct loop *loop, const struct fake_config *config)
{
    struct fake *fake = NEW(struct fake);

    fake->driver.ops = &fake_ops;
    fake->loop = loop;
    if (config)
        fake->config = *config;
    (void)pthread_mutex_init(&fake->lock, NULL);
    return &fake->driver;
}

void fake_fail(struct driver *driver, unsigned where)
{
    struct fake *fake = fake_of(driver);

    lock(fake);
    fake->fail = where;
    unlock(fake);
}

void fake_exit(struct driver *driver, const char *id)
{
    (void)end(fake_of(driver), id);
}

void fake_adopt(struct driver *driver, const char *id)
{
    struct fake *fake = fake_of(driver);
    struct fake_box *box = NEW(struct fake_box);

    box->fake = fake;
    box->link_fd = box->host_fd = -1;
    (void)snprintf(box->plan.id, sizeof box->plan.id, "%s", id);
    lock(fake);
    box->next = fake->boxes;
    fake->boxes = box;
    unlock(fake);
}

unsigned fake_count(struct driver *driver)
{
    struct fake *fake = fake_of(driver);
    unsigned count = 0;

    lock(fake);
    for (struct fake_box *box = fake->boxes; box; box = box->next)
        count++;
    unlock(fake);
    return count;
}

unsigned fake_starts(struct driver *driver)
{
    struct fake *fake = fake_of(driver);

    lock(fake);
    unsigned starts = fake->starts;
    unlock(fake);
    return starts;
}

bool fake_plan_of(struct driver *driver, const char *id, struct plan *out)
{
    struct fake *fake = fake_of(driver);

    lock(fake);
    struct fake_box *box = find(fake, id);
    if (box)
        *out = box->plan;
    unlock(fake);
    return box != NULL;
}
