#include "egress/handshakes.h"

#include "base/limits.h"
#include "base/mem.h"

enum { TOKEN = 1000 }; /* thousandths */

static const struct quota_rule rule = { .per_s = LIMIT_EGRESS_HANDSHAKES_S, .burst = LIMIT_EGRESS_HANDSHAKES_S };

void handshakes_init(struct handshakes *handshakes, struct loop *loop)
{
    *handshakes = (struct handshakes){ .loop = loop };
}

void handshakes_done(struct handshakes *handshakes)
{
    timer_clear(&handshakes->timer);
}

static void on_turn(struct timer *timer)
{
    struct handshakes *all = container_of(timer, struct handshakes, timer);
    uint64_t now_ms = loop_now_ms(all->loop), wait_ms = 0;

    while (all->waiting.first && all->under_way < LIMIT_EGRESS_HANDSHAKES &&
           (wait_ms = quota_wait_ms(&rule, &all->rate, now_ms)) == 0) {
        struct handshake *next = container_of(all->waiting.first, struct handshake, place);
        queue_leave(&next->place);
        all->under_way++;
        quota_spend(&rule, &all->rate, TOKEN, now_ms);
        next->go(next);
    }
    if (all->waiting.first && wait_ms)
        timer_set(&all->timer, all->loop, wait_ms, on_turn);
}

static void look_soon(struct handshakes *all)
{
    if (all->waiting.first && all->under_way < LIMIT_EGRESS_HANDSHAKES && !timer_is_set(&all->timer))
        timer_set(&all->timer, all->loop, 0, on_turn);
}

void handshake_begin(struct handshake *handshake, struct handshakes *of, void (*go)(struct handshake *handshake))
{
    handshake_end(handshake);
    handshake->of = of;
    handshake->go = go;
    queue_join(&of->waiting, &handshake->place);
    look_soon(of);
}

bool handshake_waits(const struct handshake *handshake)
{
    return handshake->place.in;
}

bool handshake_has_begun(const struct handshake *handshake)
{
    return handshake->of && !handshake->place.in;
}

void handshake_end(struct handshake *handshake)
{
    struct handshakes *all = take_ptr(&handshake->of);

    if (!all)
        return;
    if (handshake->place.in)
        queue_leave(&handshake->place);
    else
        all->under_way--;
    look_soon(all);
}
