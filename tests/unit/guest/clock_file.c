/*
 * A clock that a test turns from outside, for guestd_test_server only. The file that CLOISTER_TEST_CLOCK names holds by
 * how many microseconds the clock is ahead of the machine's, as eight bytes in the machine's order; the test writes them
 * and then asks for something, which wakes the loop.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "base/clock.h"
#include "base/fd.h"

static const _Atomic uint64_t *ahead_us;

static int64_t us_of(clockid_t id)
{
    struct timespec now;

    clock_gettime(id, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 + (int64_t)*ahead_us;
}

static uint64_t mono_us(void)
{
    return (uint64_t)us_of(CLOCK_MONOTONIC);
}

static int64_t wall_us(void)
{
    return us_of(CLOCK_REALTIME);
}

__attribute__((constructor)) static void use_the_file(void)
{
    static const struct clock_source source = { mono_us, wall_us };
    const char *path = getenv("CLOISTER_TEST_CLOCK");

    if (!path)
        return;
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *room = mmap(NULL, sizeof *ahead_us, PROT_READ, MAP_SHARED, fd, 0);
    if (room == MAP_FAILED)
        abort();
    ahead_us = room;
    clock_use(&source);
}
