/* Forks that get stuck. Which processes are in the zygote's cgroup, this test says itself. */
#include "isolation/native/strays.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../hand_clock.h"
#include "test.h"

enum { MANY = 600, TREES = 4, LOOK_MS = 4000 }; /* LOOK_MS: as in strays.c. MANY: more than it takes at once */

static pid_t zygote, maker, stuck[MANY];
static _Atomic int looks;

void cgroup_each_user_anywhere(const struct cgroups *cgroups, const char *id, bool (*fn)(void *context, pid_t pid),
                               void *context)
{
    (void)cgroups;
    assert_string_equal(id, "zygote");
    looks++;
    for (int tree = 0; tree < TREES; tree++) {
        bool goes_on = fn(context, zygote);
        for (int i = 0; i < MANY && goes_on; i++)
            goes_on = fn(context, stuck[i]);
    }
}

static no_return void wait_for_death(void)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;)
        (void)pause();
}

/* In a pid namespace of its own, so that all others are in another one: to strays.c they are in a sandbox. */
static bool make_zygote(void)
{
    int tell[2];

    assert_int_equal(pipe(tell), 0);
    maker = fork();
    assert_true(maker >= 0);
    if (maker == 0) {
        pid_t pid = unshare(CLONE_NEWUSER | CLONE_NEWPID) < 0 ? -1 : fork();
        if (pid == 0)
            wait_for_death();
        (void)!write(tell[1], &pid, sizeof pid);
        wait_for_death();
    }
    close(tell[1]);
    assert_int_equal(read(tell[0], &zygote, sizeof zygote), sizeof zygote);
    close(tell[0]);
    return zygote > 0;
}

static void end_zygote(void)
{
    kill(zygote, SIGKILL);
    kill(maker, SIGKILL);
    waitpid(maker, NULL, 0);
}

static int count_ended(void)
{
    int count = 0;

    while (waitpid(-1, NULL, WNOHANG) > 0)
        count++;
    return count;
}

static void *run(void *loop)
{
    loop_run(loop);
    return NULL;
}

static void any_number_of_them_is_killed_at_the_second_look(void **state)
{
    pthread_t thread;
    int ended = 0;

    (void)state;
    if (!make_zygote()) {
        end_zygote();
        skip(); /* no user namespaces here */
    }
    for (int i = 0; i < MANY; i++) {
        stuck[i] = fork();
        assert_true(stuck[i] >= 0);
        if (stuck[i] == 0)
            wait_for_death();
    }
    hand_clock_start();
    hand_clock_stand();
    struct loop *loop = loop_new();
    struct strays *strays = strays_new(loop, NULL, "zygote", zygote);
    assert_int_equal(pthread_create(&thread, NULL, run, loop), 0);

    hand_clock_turn(loop, LOOK_MS);
    assert_int_equal(looks, 1);
    assert_int_equal(count_ended(), 0); /* it may be on its way */
    hand_clock_turn(loop, LOOK_MS);
    assert_int_equal(looks, 2);
    for (int tries = 0; tries < 20 && ended < MANY; tries++) { /* those that had no room are killed later */
        hand_clock_turn(loop, LOOK_MS);
        usleep(50000);
        ended += count_ended();
    }
    assert_int_equal(ended, MANY);
    assert_int_equal(kill(zygote, 0), 0);

    loop_stop_soon(loop);
    pthread_join(thread, NULL);
    strays_free(strays);
    loop_free(loop);
    hand_clock_end();
    end_zygote();
}

int main(void)
{
    const struct CMUnitTest tests[] = { CASE(any_number_of_them_is_killed_at_the_second_look) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
