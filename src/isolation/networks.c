/*
 * How it works: a sandbox that egress has no sockets of yet is `due`, with a timer of its own. When the timer fires, its
 * sockets are made and sent, and it is due no more; or they could not be made, and the timer is set again. At the first
 * failure egress is told that the sandbox exists, without sockets, so that it keeps the policy however long this takes.
 * A new sandbox does not wait for a timer. When egress starts, all sandboxes become due, a few in each millisecond: making
 * sockets takes keeper 50 us a sandbox.
 */
#include "isolation/networks.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"

enum {
    A_MILLISECOND = 8, /* sandboxes that become due together, when egress has started */
    RETRY_FIRST_MS = 250,
    RETRY_MAX_MS = 30000,
};

struct networks {
    struct loop *loop;
    struct driver *driver;
    struct channel *egress; /* NULL: none runs */
    struct map due;         /* id → struct due */
};

struct due {
    struct networks *networks;
    char id[LIMIT_ID_BYTES];
    struct timer timer;
    uint32_t retry_ms; /* the last pause; 0: not tried yet */
};

static void due_free(struct due *due)
{
    (void)map_remove(&due->networks->due, str_from(due->id));
    timer_clear(&due->timer);
    free(due);
}

static void send_sockets(struct networks *networks, const char *id, const int fds[DIVERT_KINDS])
{
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    int there[DIVERT_KINDS];
    uint32_t count = 0;
    uint8_t bits = 0;

    for (int i = 0; i < DIVERT_KINDS; i++) {
        if (fds[i] < 0)
            continue;
        bits |= (uint8_t)BIT(i);
        there[count++] = fds[i];
    }
    message_pack_id(&payload, id);
    pack_u8(&payload, bits);
    channel_send_event(networks->egress, MESSAGE_NETWORK, buf_str(&payload), there, count);
}

/* ERR_NOT_FOUND, ERR_UNAVAILABLE: the sandbox has gone, or has no network. Nothing to send, ever. */
static bool is_final(const struct err *why)
{
    return why->kind == ERR_NOT_FOUND || why->kind == ERR_UNAVAILABLE;
}

static void on_due(struct timer *timer)
{
    struct due *due = container_of(timer, struct due, timer);
    struct networks *networks = due->networks;
    int fds[DIVERT_KINDS];
    struct err err;

    if (driver_divert(networks->driver, due->id, fds, &err)) {
        send_sockets(networks, due->id, fds);
        fd_close_each(fds, DIVERT_KINDS);
        if (due->retry_ms > RETRY_FIRST_MS)
            log_info("sandbox %s has network again", due->id);
        due_free(due);
        return;
    }
    if (is_final(&err)) {
        due_free(due);
        return;
    }
    if (!due->retry_ms)
        send_sockets(networks, due->id, (int[DIVERT_KINDS]){ -1, -1, -1, -1 });
    /* Not the first time: after a restart the old egress may not have closed its sockets yet. */
    if (due->retry_ms == RETRY_FIRST_MS)
        log_warn("sandbox %s has no network for now: %s", due->id, err_text(&err));
    due->retry_ms = due->retry_ms ? MIN(due->retry_ms * 2, RETRY_MAX_MS) : RETRY_FIRST_MS;
    timer_set(&due->timer, networks->loop, due->retry_ms, on_due);
}

static struct due *make_due(struct networks *networks, const char *id)
{
    struct due *due = map_get(&networks->due, str_from(id));

    if (!due) {
        due = NEW(struct due);
        due->networks = networks;
        (void)snprintf(due->id, sizeof due->id, "%s", id);
        (void)map_put(&networks->due, str_from(due->id), due);
    }
    return due;
}

static void forget_all(struct networks *networks)
{
    struct due *due;

    for (size_t i = 0; (due = map_next(&networks->due, &i)); i = 0)
        due_free(due);
}

struct networks *networks_new(struct loop *loop, struct driver *driver)
{
    struct networks *networks = NEW(struct networks);

    networks->loop = loop;
    networks->driver = driver;
    map_init(&networks->due);
    return networks;
}

void networks_free(struct networks *networks)
{
    if (!networks)
        return;
    forget_all(networks);
    map_done(&networks->due);
    free(networks);
}

void networks_tell(struct networks *networks, struct channel *egress)
{
    auto_free struct held *held = NULL;
    uint32_t count = 0;
    struct err err;

    forget_all(networks);
    networks->egress = egress;
    if (!egress)
        return;
    if (!driver_list(networks->driver, &held, &count, &err))
        log_error("sandboxes have no network until egress is restarted: %s", err_text(&err));
    for (uint32_t i = 0; i < count; i++)
        timer_set(&make_due(networks, held[i].id)->timer, networks->loop, i / A_MILLISECOND, on_due);
}

struct channel *networks_told(const struct networks *networks)
{
    return networks->egress;
}

void networks_started(struct networks *networks, const char *id)
{
    /* At once, not in a later turn: other starts may come first, and its guest would be refused until then. */
    if (networks->egress)
        on_due(&make_due(networks, id)->timer);
}

void networks_exited(struct networks *networks, const char *id, struct str payload)
{
    struct due *due = map_get(&networks->due, str_from(id));

    if (due)
        due_free(due);
    if (networks->egress)
        channel_send_event(networks->egress, MESSAGE_EXITED, payload, NULL, 0);
}
