#include "base/clock.h"

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

static uint64_t machine_mono_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static int64_t machine_wall_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static const struct clock_source machine = { machine_mono_us, machine_wall_us };
static const struct clock_source *_Atomic source = &machine;

void clock_use(const struct clock_source *new_source)
{
    source = new_source ? new_source : &machine;
}

uint64_t clock_mono_us(void)
{
    return source->mono_us();
}

uint64_t clock_mono_ms(void)
{
    return clock_mono_us() / 1000;
}

int64_t clock_wall_us(void)
{
    return source->wall_us();
}

struct timespec clock_wait_until(unsigned after_ms)
{
    struct timespec at;

    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += after_ms / 1000;
    at.tv_nsec += (long)(after_ms % 1000) * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

const char *clock_text(int64_t wall_us, char room[CLOCK_TEXT_BYTES])
{
    time_t seconds = (time_t)(wall_us / 1000000);
    long micros = (long)(wall_us % 1000000);
    struct tm utc;

    if (micros < 0) {
        micros += 1000000;
        seconds--;
    }
    gmtime_r(&seconds, &utc);
    size_t used = strftime(room, CLOCK_TEXT_BYTES, "%Y-%m-%dT%H:%M:%S", &utc);
    (void)snprintf(room + used, CLOCK_TEXT_BYTES - used, ".%06ldZ", micros);
    return room;
}

static bool take_number(struct str *s, size_t digits, int least, int most, int *out)
{
    uint64_t value;

    if (s->len < digits || !str_to_u64(str_of(s->at, digits), (uint64_t)most, &value) || (int)value < least)
        return false;
    s->at += digits;
    s->len -= digits;
    *out = (int)value;
    return true;
}

bool clock_parse(struct str s, int64_t *out_wall_us)
{
    struct tm tm = { 0 };
    int micros = 0, offset_min = 0;

    if (!take_number(&s, 4, 1970, 9999, &tm.tm_year) || !str_skip(&s, STR("-")) ||
        !take_number(&s, 2, 1, 12, &tm.tm_mon) || !str_skip(&s, STR("-")) || !take_number(&s, 2, 1, 31, &tm.tm_mday) ||
        !str_skip(&s, STR("T")) || !take_number(&s, 2, 0, 23, &tm.tm_hour) || !str_skip(&s, STR(":")) ||
        !take_number(&s, 2, 0, 59, &tm.tm_min) || !str_skip(&s, STR(":")) || !take_number(&s, 2, 0, 60, &tm.tm_sec))
        return false;
    if (str_skip(&s, STR("."))) {
        int digits = 0;
        for (; s.len && s.at[0] >= '0' && s.at[0] <= '9'; s.at++, s.len--, digits++)
            if (digits < 6)
                micros = micros * 10 + (s.at[0] - '0');
        if (digits == 0 || digits > 9)
            return false;
        for (; digits < 6; digits++)
            micros *= 10;
    }
    if (!str_skip(&s, STR("Z"))) {
        bool west = str_skip(&s, STR("-"));
        int hours, minutes;
        if (!west && !str_skip(&s, STR("+")))
            return false;
        if (!take_number(&s, 2, 0, 23, &hours) || !str_skip(&s, STR(":")) || !take_number(&s, 2, 0, 59, &minutes))
            return false;
        offset_min = (hours * 60 + minutes) * (west ? -1 : 1);
    }
    if (s.len)
        return false;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    *out_wall_us = ((int64_t)timegm(&tm) - (int64_t)offset_min * 60) * 1000000 + micros;
    return true;
}
