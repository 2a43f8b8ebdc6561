/* A machine of its own: sandboxes that take memory, time that passes only when a test says so. */
#include "isolation/native/growth.h"

#include <stdio.h>

#include "base/mem.h"
#include "hand_clock.h"
#include "test.h"

enum { BOXES = 20, LOOK_US = 1000 };
#define MEMORY (24ull << 30)
#define MIB (1ll << 20)

struct guest {
    char id[LIMIT_ID_BYTES];
    int64_t bytes_per_s; /* uncharged */
    int64_t charged_per_s;
    unsigned busy; /* percent of its time that it uses */
    unsigned burst_ms, idle_ms;
    unsigned slow_to_freeze_ms;
    unsigned shy_ms;       /* how long it keeps still after it was frozen */
    struct guest *watched; /* it takes none while this one is frozen */
    bool counts;           /* its own thaws, and takes memory after every second one */
    unsigned thaws;
    bool frozen, ended;
    uint64_t froze_us, thawed_us;
    uint64_t cpu_us;
    uint64_t frozen_us; /* all in all */
    int64_t held;
    bool is_cache; /* the kernel could do without */
};

struct machine {
    struct growth growth;
    struct guest guests[BOXES];
    uint64_t now_us;
    int64_t own_per_s; /* of the machine itself */
    int64_t noise;     /* that much more and less by turns */
    int64_t own, charged;
    unsigned ended, wrongly, shrinks;
    bool has_caches;
    unsigned random;
};

static struct guest *find(struct machine *machine, const char *id)
{
    for (int i = 0; i < BOXES; i++)
        if (!strcmp(machine->guests[i].id, id) && !machine->guests[i].ended)
            return &machine->guests[i];
    return NULL;
}

static unsigned next_random(struct machine *machine)
{
    machine->random = machine->random * 1664525 + 1013904223;
    return machine->random >> 8;
}

static bool stands(const struct machine *machine, const struct guest *guest)
{
    return guest->frozen && machine->now_us >= guest->froze_us + guest->slow_to_freeze_ms * 1000ull;
}

static bool sample(void *context, bool exact, struct growth_sample *out)
{
    struct machine *machine = context;
    int64_t bytes = 1000 * MIB + machine->own + (machine->noise ? next_random(machine) % machine->noise : 0);

    (void)exact;
    for (int i = 0; i < BOXES; i++)
        bytes += machine->guests[i].ended ? 0 : machine->guests[i].held;
    *out = (struct growth_sample){ .at_us = machine->now_us, .kernel = bytes + machine->charged, .uncharged = bytes };
    return true;
}

static bool next(void *context, size_t *cursor, char out_id[LIMIT_ID_BYTES])
{
    struct machine *machine = context;

    while (*cursor < BOXES && machine->guests[*cursor].ended)
        (*cursor)++;
    if (*cursor == BOXES)
        return false;
    memcpy(out_id, machine->guests[(*cursor)++].id, LIMIT_ID_BYTES);
    return true;
}

static bool cpu_us(void *context, const char *id, uint64_t *out_us)
{
    struct guest *guest = find(context, id);

    if (guest)
        *out_us = guest->cpu_us;
    return guest;
}

static bool freeze(void *context, const char *id)
{
    struct machine *machine = context;
    struct guest *guest = find(machine, id);

    if (!guest)
        return false;
    assert_false(guest->frozen);
    guest->frozen = true;
    guest->froze_us = machine->now_us;
    return true;
}

static bool is_frozen(void *context, const char *id)
{
    struct guest *guest = find(context, id);

    return !guest || stands(context, guest);
}

static void thaw(void *context, const char *id)
{
    struct machine *machine = context;
    struct guest *guest = find(machine, id);

    if (!guest)
        return;
    assert_true(guest->frozen);
    guest->frozen = false;
    guest->thaws++;
    guest->thawed_us = machine->now_us;
}

static void end(void *context, const char *id, uint64_t grown_bytes)
{
    struct machine *machine = context;
    struct guest *guest = find(machine, id);

    assert_non_null(guest);
    assert_true(grown_bytes > 0);
    guest->ended = true;
    machine->ended++;
    machine->wrongly += !guest->bytes_per_s;
}

static bool shrink(void *context)
{
    struct machine *machine = context;

    machine->shrinks += machine->has_caches;
    for (int i = 0; i < BOXES && machine->has_caches; i++)
        machine->guests[i].held -= machine->guests[i].is_cache ? machine->guests[i].held : 0;
    return machine->has_caches;
}

static bool is_shrunk(void *context)
{
    (void)context;
    return true;
}

static const struct growth_ops ops = { .sample = sample,
                                       .next = next,
                                       .cpu_us = cpu_us,
                                       .freeze = freeze,
                                       .is_frozen = is_frozen,
                                       .thaw = thaw,
                                       .shrink = shrink,
                                       .is_shrunk = is_shrunk,
                                       .end = end };

static bool takes_memory(const struct machine *machine, const struct guest *guest)
{
    if (guest->watched && guest->watched->frozen)
        return false;
    if (guest->counts && guest->thaws > 1 && guest->thaws % 2)
        return false;
    uint64_t period_us = (guest->burst_ms + guest->idle_ms) * 1000ull;

    if (guest->thawed_us && machine->now_us < guest->thawed_us + guest->shy_ms * 1000ull)
        return false;
    return !period_us || machine->now_us % period_us < guest->burst_ms * 1000ull;
}

static void pass(struct machine *machine, uint64_t us)
{
    machine->now_us += us;
    hand_clock_ahead_us += us;
    machine->own += machine->own_per_s * (int64_t)us / 1000000;
    for (int i = 0; i < BOXES; i++) {
        struct guest *guest = &machine->guests[i];
        if (guest->ended)
            continue;
        guest->frozen_us += guest->frozen ? us : 0;
        if (stands(machine, guest))
            continue;
        guest->cpu_us += us * guest->busy / 100;
        if (takes_memory(machine, guest))
            guest->held += guest->bytes_per_s * (int64_t)us / 1000000;
        machine->charged += guest->charged_per_s * (int64_t)us / 1000000;
    }
}

/* Steps are taken when they are due, a tenth of them some milliseconds late. */
static void run(struct machine *machine, uint64_t ms)
{
    for (uint64_t until_us = machine->now_us + ms * 1000; machine->now_us < until_us;) {
        uint64_t pause_ms = growth_step(&machine->growth, machine->now_us);
        pass(machine, pause_ms * 1000 + (next_random(machine) % 10 ? 60 : 7000));
    }
}

static int setup(void **state)
{
    struct machine *machine = NEW(struct machine);

    hand_clock_start();
    hand_clock_stand();
    for (int i = 0; i < BOXES; i++) {
        snprintf(machine->guests[i].id, LIMIT_ID_BYTES, "sandbox%d", i);
        machine->guests[i].busy = 1 + (unsigned)i % 10;
    }
    machine->now_us = 1000000;
    growth_init(&machine->growth, &ops, machine, MEMORY, 2);
    *state = machine;
    return 0;
}

static int teardown(void **state)
{
    struct machine *machine = *state;

    growth_done(&machine->growth);
    for (int i = 0; i < BOXES; i++)
        assert_true(machine->guests[i].ended || !machine->guests[i].frozen);
    hand_clock_end();
    free(machine);
    return 0;
}

static void check_only_ended(const struct machine *machine, int who, int64_t held_most)
{
    assert_int_equal(machine->ended, 1);
    assert_true(machine->guests[who].ended);
    if (machine->guests[who].held > held_most)
        fail_msg("it had taken %lld MiB", (long long)(machine->guests[who].held >> 20));
}

static void one_of_twenty_that_makes_the_kernel_grow_is_ended(void **state)
{
    struct machine *machine = *state;
    static const int rates[] = { 40, 70, 150, 325, 2000 };

    for (size_t i = 0; i < COUNT_OF(rates); i++) {
        machine->guests[i * 3].bytes_per_s = rates[i] * MIB;
        machine->guests[i * 3].busy = 10 + (unsigned)rates[i] / 20;
        machine->ended = 0;
        run(machine, 4000 + 80000 / (unsigned)rates[i]);
        check_only_ended(machine, (int)i * 3, MAX(200, rates[i]) * MIB);
        run(machine, 2000);
    }
}

static void innocents_stand_still_for_milliseconds_at_most(void **state)
{
    struct machine *machine = *state;

    machine->guests[7].bytes_per_s = 325 * MIB;
    machine->guests[7].busy = 40;
    machine->guests[3].busy = 90; /* it does more than the culprit */
    run(machine, 5000);
    check_only_ended(machine, 7, 200 * MIB);
    for (int i = 0; i < BOXES; i++)
        assert_true(i == 7 || machine->guests[i].frozen_us < 900000);
}

static void several_that_work_together_are_all_ended(void **state)
{
    struct machine *machine = *state;

    for (int i = 2; i < 6; i++) {
        machine->guests[i].bytes_per_s = 60 * MIB;
        machine->guests[i].busy = 20;
    }
    run(machine, 10000);
    assert_int_equal(machine->ended, 4);
    assert_int_equal(machine->wrongly, 0);
}

static void growth_that_is_charged_concerns_nobody(void **state)
{
    struct machine *machine = *state;

    machine->guests[7].charged_per_s = 500 * MIB;
    machine->guests[7].busy = 80;
    run(machine, 20000);
    assert_int_equal(machine->ended, 0);
    assert_int_equal(machine->guests[7].frozen_us, 0);
}

static void growth_of_the_machine_itself_ends_nobody(void **state)
{
    struct machine *machine = *state;

    for (int i = 0; i < BOXES; i++)
        machine->guests[i].busy = 50;
    machine->own_per_s = 100 * MIB;
    run(machine, 120000);
    assert_int_equal(machine->ended, 0);
    /* And it is not tried again and again. */
    for (int i = 0; i < BOXES; i++)
        assert_true(machine->guests[i].frozen_us < 20 * 1000000);
}

static void a_restless_machine_ends_nobody(void **state)
{
    struct machine *machine = *state;

    for (int i = 0; i < BOXES; i++)
        machine->guests[i].busy = 50;
    machine->noise = 40 * MIB;
    machine->own_per_s = 10 * MIB;
    run(machine, 1200000);
    assert_int_equal(machine->ended, 0);
}

static void a_culprit_on_a_restless_machine_is_found_before_the_memory_is_gone(void **state)
{
    struct machine *machine = *state;

    machine->noise = 10 * MIB;
    machine->guests[7].bytes_per_s = 200 * MIB;
    machine->guests[7].busy = 40;
    run(machine, 20000);
    check_only_ended(machine, 7, (int64_t)(MEMORY / 16));
}

static void a_culprit_that_rests_between_bursts_is_ended(void **state)
{
    struct machine *machine = *state;

    machine->guests[7].bytes_per_s = 300 * MIB;
    machine->guests[7].busy = 40;
    machine->guests[7].burst_ms = 800;
    machine->guests[7].idle_ms = 5000;
    run(machine, 60000);
    check_only_ended(machine, 7, (int64_t)(MEMORY / 16));
}

static void a_slow_one_is_ended_when_it_has_taken_much(void **state)
{
    struct machine *machine = *state;

    machine->guests[7].bytes_per_s = 4 * MIB;
    machine->guests[7].busy = 5;
    run(machine, 600000);
    check_only_ended(machine, 7, (int64_t)(MEMORY / 12));
}

static void one_that_cannot_be_frozen_in_time_is_ended(void **state)
{
    struct machine *machine = *state;

    machine->guests[7].bytes_per_s = 150 * MIB;
    machine->guests[7].busy = 40;
    machine->guests[7].slow_to_freeze_ms = 60;
    run(machine, 20000);
    check_only_ended(machine, 7, 1500 * MIB);
}

static void one_that_keeps_still_after_each_freeze_is_ended_in_an_emergency(void **state)
{
    struct machine *machine = *state;

    machine->guests[7].bytes_per_s = 300 * MIB;
    machine->guests[7].busy = 40;
    machine->guests[7].shy_ms = 1500;
    run(machine, 300000);
    check_only_ended(machine, 7, (int64_t)(MEMORY / 6));
}

/* Others that were frozen before it must not stand still for as long as it likes. */
static void one_that_is_never_quite_proven_holds_nobody_up(void **state)
{
    struct machine *machine = *state;

    machine->guests[3].busy = 90;
    machine->guests[7].bytes_per_s = 300 * MIB;
    machine->guests[7].busy = 40;
    machine->guests[7].counts = true;
    run(machine, 300000);
    check_only_ended(machine, 7, (int64_t)(MEMORY / 4));
    assert_true(machine->guests[3].frozen_us < 60 * 1000000);
}

/* It takes memory only while it sees the other one run. */
static void one_that_wants_another_to_be_ended_does_not_get_it(void **state)
{
    struct machine *machine = *state;

    machine->guests[3].busy = 90;
    machine->guests[7].bytes_per_s = 60 * MIB;
    machine->guests[7].busy = 10;
    machine->guests[7].watched = &machine->guests[3];
    run(machine, 40000); /* no emergency yet */
    assert_int_equal(machine->wrongly, 0);
}

static void caches_of_a_file_system_are_dropped_and_nobody_is_ended(void **state)
{
    struct machine *machine = *state;

    machine->has_caches = true;
    machine->guests[7].is_cache = true;
    machine->guests[7].bytes_per_s = 100 * MIB;
    machine->guests[7].busy = 40;
    run(machine, 60000);
    assert_int_equal(machine->ended, 0);
    assert_in_range(machine->shrinks, 1, 6000 * MIB / (int64_t)(MEMORY / 32) + 1);
}

static void what_is_no_cache_is_ended_and_others_soon_after_without_another_look(void **state)
{
    struct machine *machine = *state;

    machine->has_caches = true;
    for (int i = 3; i < 9; i += 3) {
        machine->guests[i].bytes_per_s = 100 * MIB;
        machine->guests[i].busy = 40;
        run(machine, 5000);
        assert_true(machine->guests[i].ended);
    }
    assert_int_equal(machine->ended, 2);
    assert_int_equal(machine->shrinks, 1);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test_setup_teardown(one_of_twenty_that_makes_the_kernel_grow_is_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(innocents_stand_still_for_milliseconds_at_most, setup, teardown),
        cmocka_unit_test_setup_teardown(several_that_work_together_are_all_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(growth_that_is_charged_concerns_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(growth_of_the_machine_itself_ends_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(a_restless_machine_ends_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(a_culprit_on_a_restless_machine_is_found_before_the_memory_is_gone, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_culprit_that_rests_between_bursts_is_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(a_slow_one_is_ended_when_it_has_taken_much, setup, teardown),
        cmocka_unit_test_setup_teardown(one_that_cannot_be_frozen_in_time_is_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(one_that_is_never_quite_proven_holds_nobody_up, setup, teardown),
        cmocka_unit_test_setup_teardown(one_that_wants_another_to_be_ended_does_not_get_it, setup, teardown),
        cmocka_unit_test_setup_teardown(caches_of_a_file_system_are_dropped_and_nobody_is_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_no_cache_is_ended_and_others_soon_after_without_another_look, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(one_that_keeps_still_after_each_freeze_is_ended_in_an_emergency, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
