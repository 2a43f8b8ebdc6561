/*
 * What ended sandboxes have left in the kernel, by team.
 *
 * The kernel keeps a third of a megabyte for a sandbox that has ended as long as one page stays that was charged to it. The
 * driver has such pages taken back, but not those that another sandbox holds: locked, or in a pipe. A team could make as many
 * of them as it likes, for as long as one of its sandboxes holds the pages. So they are counted, and a team with many makes no
 * more sandboxes while the machine is short of memory. Nothing says when the kernel has let go of one. So the count goes down
 * by one each minute, and to nothing when the team has no sandbox that could hold anything.
 */
#include <stdlib.h>

#include "base/fnv.h"
#include "base/mem.h"
#include "sandbox/inside.h"

enum {
    ENDED_MAX = 32768, /* as many may end while the driver still tries with the first: two minutes, see drain.c */
    TEAMS_MAX = 64,    /* of more than these, the one with the fewest is forgotten */
    FORGET_MS = 60 * 1000,
};

/* By FNV-1a: the server makes all ids, at random, and all of the ring is in memory after a while. */
struct ended {
    uint64_t id, team; /* id 0: it was counted, or there is none */
};

struct team {
    uint64_t id;
    unsigned count; /* 0: this place is free */
    uint64_t at_ms; /* when it was last made smaller */
};

struct left {
    struct ended ended[ENDED_MAX]; /* a ring */
    unsigned next;
    struct team teams[TEAMS_MAX];
};

struct left *left_new(void)
{
    return NEW(struct left);
}

void left_free(struct left *left)
{
    free(left);
}

static uint64_t hash_of(struct str id)
{
    return fnv_add(FNV_START, id);
}

void left_ended(struct left *left, const char *id, struct str team_id)
{
    left->ended[left->next++ % ENDED_MAX] = (struct ended){ hash_of(str_from(id)), hash_of(team_id) };
}

static void lower(struct team *team, uint64_t now_ms)
{
    uint64_t minutes = (now_ms - team->at_ms) / FORGET_MS;

    team->at_ms += minutes * FORGET_MS;
    team->count -= (unsigned)MIN(minutes, (uint64_t)team->count);
}

static struct team *find(struct left *left, uint64_t id)
{
    for (size_t i = 0; i < TEAMS_MAX; i++)
        if (left->teams[i].count && left->teams[i].id == id)
            return &left->teams[i];
    return NULL;
}

static struct team *add(struct left *left, uint64_t id, uint64_t now_ms)
{
    struct team *fewest = &left->teams[0];

    for (size_t i = 1; i < TEAMS_MAX; i++)
        if (left->teams[i].count < fewest->count)
            fewest = &left->teams[i];
    *fewest = (struct team){ .id = id, .at_ms = now_ms };
    return fewest;
}

static void count(struct left *left, uint64_t id, uint64_t now_ms)
{
    struct team *team = find(left, id);

    if (!team)
        team = add(left, id, now_ms);
    lower(team, now_ms);
    team->count++;
}

void left_note(struct left *left, const char *id, struct str team_id, uint64_t now_ms)
{
    uint64_t hash = hash_of(str_from(id));

    if (team_id.len) {
        count(left, hash_of(team_id), now_ms);
        return;
    }
    for (size_t i = 0; i < ENDED_MAX; i++) {
        if (left->ended[i].id != hash)
            continue;
        count(left, left->ended[i].team, now_ms);
        left->ended[i].id = 0;
        return;
    }
}

unsigned left_count(struct left *left, struct str team_id, uint64_t now_ms)
{
    struct team *team = find(left, hash_of(team_id));

    if (!team)
        return 0;
    lower(team, now_ms);
    return team->count;
}

void left_forget(struct left *left, struct str team_id)
{
    struct team *team = find(left, hash_of(team_id));

    if (team)
        team->count = 0;
}
