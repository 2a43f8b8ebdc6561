#include "guest/pause.h"

#include <stdlib.h>

#include "base/mem.h"
#include "guest/interpreter/interpreter.h"
#include "guest/watch.h"

enum {
    SPAWN_MS = 1000, /* for interpreters on their way; the host waits for two seconds */
    LOOK_MS = 3,     /* between two looks; a spawn takes 30 ms */
};

struct pause {
    struct guest *guest;
    void (*ready)(struct guest *guest);
    uint64_t give_up_ms;
    struct timer look;
};

static void on_look(struct timer *timer)
{
    struct pause *pause = container_of(timer, struct pause, look);
    struct guest *guest = pause->guest;

    if (!interpreter_is_prepared(guest->interpreter)) {
        if (loop_now_ms(guest->loop) < pause->give_up_ms) {
            timer_set(&pause->look, guest->loop, LOOK_MS, on_look);
            return;
        }
        interpreter_give_up_spawns(guest->interpreter);
    }
    watchers_suspend(guest->watchers);
    pause->ready(guest);
}

void pause_prepare(struct guest *guest, void (*ready)(struct guest *guest))
{
    if (!guest->pause) {
        guest->pause = NEW(struct pause);
        guest->pause->guest = guest;
    }
    guest->pause->ready = ready;
    guest->pause->give_up_ms = loop_now_ms(guest->loop) + SPAWN_MS;
    interpreter_prepare(guest->interpreter);
    on_look(&guest->pause->look);
}

void pause_resumed(struct guest *guest)
{
    if (!guest->pause)
        return;
    timer_clear(&guest->pause->look);
    free(take_ptr(&guest->pause));
    interpreter_resumed(guest->interpreter);
    watchers_resume(guest->watchers);
}
