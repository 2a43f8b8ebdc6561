/*
 * What ended sandboxes have left in the kernel, by team.
 *
 * The kernel keeps a third of a megabyte for a sandbox that has ended as long as one page stays that was charged to it. The
 * driver has such pages taken back, but not those that another sandbox holds: locked, or in a pipe. A team could make as many
 * of them as it likes, for as long as one of its sandboxes holds the pages. So they are counted, and a team with many makes no
 * more sandboxes while the machine is short of memory. Nothing says when the kernel has let go of one. So the count goes down
 * by one each minute, and to nothing when the team has no sandbox that could hold anything.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sandbox/inside.h"

enum {
    ENDED_MAX = 32768, /* as many may end while the driver still tries with the first: two minutes, see drain.c */
    TEAMS_MAX = 64,    /* of more than these, the one with the fewest is forgotten */
    FORGET_MS = 60 * 1000,
};

struct ended {
    char id[LIMIT_ID_BYTES];
    char team_id[STORE_UUID_BYTES];
};

struct team {
    char id[STORE_UUID_BYTES];
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

void left_ended(struct left *left, const char *id, struct str team_id)
{
    struct ended *ended = &left->ended[left->next++ % ENDED_MAX];

    (void)snprintf(ended->id, sizeof ended->id, "%s", id);
    (void)snprintf(ended->team_id, sizeof ended->team_id, "%.*s", STR_ARG(team_id));
}

static void lower(struct team *team, uint64_t now_ms)
{
    uint64_t minutes = (now_ms - team->at_ms) / FORGET_MS;

    team->at_ms += minutes * FORGET_MS;
    team->count -= (unsigned)MIN(minutes, (uint64_t)team->count);
}

static struct team *find(struct left *left, struct str team_id)
{
    for (size_t i = 0; i < TEAMS_MAX; i++)
        if (left->teams[i].count && str_eq(str_from(left->teams[i].id), team_id))
            return &left->teams[i];
    return NULL;
}

static struct team *add(struct left *left, struct str team_id, uint64_t now_ms)
{
    struct team *fewest = &left->teams[0];

    for (size_t i = 1; i < TEAMS_MAX; i++)
        if (left->teams[i].count < fewest->count)
            fewest = &left->teams[i];
    *fewest = (struct team){ .at_ms = now_ms };
    (void)snprintf(fewest->id, sizeof fewest->id, "%.*s", STR_ARG(team_id));
    return fewest;
}

static void count(struct left *left, struct str team_id, uint64_t now_ms)
{
    struct team *team = find(left, team_id);

    if (!team)
        team = add(left, team_id, now_ms);
    lower(team, now_ms);
    team->count++;
}

void left_note(struct left *left, const char *id, struct str team_id, uint64_t now_ms)
{
    if (team_id.len) {
        count(left, team_id, now_ms);
        return;
    }
    for (size_t i = 0; i < ENDED_MAX; i++) {
        struct ended *ended = &left->ended[i];
        if (strcmp(ended->id, id) != 0)
            continue;
        count(left, str_from(ended->team_id), now_ms);
        ended->id[0] = '\0';
        return;
    }
}

unsigned left_count(struct left *left, struct str team_id, uint64_t now_ms)
{
    struct team *team = find(left, team_id);

    if (!team)
        return 0;
    lower(team, now_ms);
    return team->count;
}

void left_forget(struct left *left, struct str team_id)
{
    struct team *team = find(left, team_id);

    if (team)
        team->count = 0;
}
